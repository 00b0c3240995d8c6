//! The checksum of the format.

/// The CRC-32C of `data`, masked as the format wants it: turned by 15 bits, plus a constant.
///
/// The mask is there because the CRC of a string that contains its own CRC is not a good check, and
/// records are often stored inside of records.
pub fn masked_crc32c(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_mask_turns_the_checksum_and_adds_a_constant() {
        assert_eq!(super::masked_crc32c(b""), 0xa282_ead8);
        assert_eq!(super::masked_crc32c(b"foo"), 0xfebe_8a61);
    }

    #[test]
    fn the_unmasked_checksum_agrees_with_rfc_3720() {
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c::crc32c(&[0xff; 32]), 0x62a8_ab43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c::crc32c(&ascending), 0x46dd_794e);
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    }
}
