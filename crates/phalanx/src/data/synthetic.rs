//! Digits drawn by the program, for machines that no data set can reach.
//!
//! Every image is one of the `glyphs`, bent, slanted, turned, scaled and shifted at random, and drawn
//! with a pen of random width. The same seed draws the same digits on every machine of one kind.

use super::Examples;
use super::glyphs::{self, Glyph};
use crate::random::Random;

const SIDE: usize = 28;
const PIXELS: usize = SIDE * SIDE;
/// How many pixels are computed together; a divisor of the side.
const BLOCK: usize = 4;

/// Squared distance from the pen, in pixels, of a pixel that no stroke has come near.
const FAR: f32 = 1e6;

/// Draws one digit after the other.
pub(super) struct Artist {
    glyphs: [Vec<Glyph>; 10],
    rng: Random,
    /// For the image at hand, each pixel's squared distance from the nearest stroke.
    distances: [f32; PIXELS],
}

impl Artist {
    pub fn new(seed: u64) -> Self {
        Self { glyphs: glyphs::all(), rng: Random::new(seed), distances: [FAR; PIXELS] }
    }

    /// The next `count` digits, of all classes alike and in no order.
    pub fn draw(&mut self, count: usize) -> Examples {
        let mut pixels = vec![0; count * PIXELS];
        let (images, _) = pixels.as_chunks_mut();
        let labels = images.iter_mut().map(|image| self.draw_one(image)).collect();
        Examples { pixels, labels, rows: SIDE, columns: SIDE }
    }

    /// Draws any digit, and says which.
    fn draw_one(&mut self, image: &mut [u8; PIXELS]) -> u8 {
        let Self { glyphs, rng, distances } = self;
        let digit = rng.below(glyphs.len());
        let ways = &glyphs[digit];
        let glyph = &ways[rng.below(ways.len())];
        let hand = Hand::random(rng);
        distances.fill(FAR);
        for stroke in glyph {
            let mut points = stroke.iter().map(|point| hand.place(*point));
            let Some(mut from) = points.next() else { continue };
            for to in points {
                mark(distances, from, to, hand.pen + 1.0);
                from = to;
            }
        }
        // One pixel of fall-off round the pen's edge, which is what smooths it.
        let edge = hand.pen + 0.5;
        for (grey, distance) in image.iter_mut().zip(distances.iter()) {
            *grey = to_grey((edge - distance.sqrt()).clamp(0.0, 1.0) * hand.ink);
        }
        add_noise(image, rng);
        digit as u8
    }
}

/// Lowers the distances of the pixels within `reach` of the line from `a` to `b`, and of some beyond.
fn mark(distances: &mut [f32; PIXELS], a: [f32; 2], b: [f32; 2], reach: f32) {
    // Float to integer conversion saturates, so that what lies outside of the image is cut off.
    let span = |i: usize| {
        let first = (a[i].min(b[i]) - reach) as usize;
        let end = a[i].max(b[i]) + reach + 1.0;
        first.min(SIDE)..(end as usize).min(SIDE)
    };
    let (columns, rows) = (span(0), span(1));
    if columns.is_empty() || rows.is_empty() {
        return;
    }
    // Whole blocks of columns, which the compiler turns into vector instructions.
    let columns = columns.start / BLOCK * BLOCK..columns.end.next_multiple_of(BLOCK);
    let [dx, dy] = [b[0] - a[0], b[1] - a[1]];
    let scale = 1.0 / (dx * dx + dy * dy).max(1e-6);
    for y in rows {
        let py = y as f32 - a[1];
        let (blocks, _) = distances[y * SIDE..][columns.clone()].as_chunks_mut::<BLOCK>();
        let mut px = columns.start as f32 - a[0];
        for block in blocks {
            for (i, distance) in block.iter_mut().enumerate() {
                let px = px + i as f32;
                let along = ((px * dx + py * dy) * scale).clamp(0.0, 1.0);
                let (ex, ey) = (px - along * dx, py - along * dy);
                let squared = ex * ex + ey * ey;
                *distance = if squared < *distance { squared } else { *distance };
            }
            px += BLOCK as f32;
        }
    }
}

/// The whole number nearest to a value from 0 to 255.
///
/// Adding 2^23 to a float leaves its rounded value in its lowest bits; unlike a cast, which must mind values
/// out of range, that is fast in bulk.
fn to_grey(value: f32) -> u8 {
    (value + (1 << 23) as f32).to_bits() as u8
}

/// Shifts every pixel's grey a little, up or down.
fn add_noise(image: &mut [u8; PIXELS], rng: &mut Random) {
    for eight in image.as_chunks_mut::<8>().0 {
        for (grey, noise) in eight.iter_mut().zip(rng.bits().to_le_bytes()) {
            *grey = grey.saturating_add(noise & 31).saturating_sub(16);
        }
    }
}

/// How one digit comes to be written: the way from the unit square to the pixels.
struct Hand {
    /// Linear part of the map, row by row: scale, turn and slant.
    map: [[f32; 2]; 2],
    /// Where the middle of the square goes.
    centre: [f32; 2],
    /// How much horizontals and verticals are bent.
    bend: [f32; 2],
    /// Half the width of the pen, in pixels.
    pen: f32,
    /// The grey of a full stroke.
    ink: f32,
}

impl Hand {
    fn random(rng: &mut Random) -> Self {
        let (sin, cos) = rng.between(-0.3, 0.3).sin_cos();
        let slant = rng.between(-0.35, 0.35);
        let [wide, high] = [rng.between(13.0, 21.0), rng.between(16.0, 22.0)];
        let middle = (SIDE - 1) as f32 / 2.0;
        Self {
            map: [[wide * cos, high * (slant * cos - sin)], [wide * sin, high * (slant * sin + cos)]],
            centre: [middle + rng.between(-3.0, 3.0), middle + rng.between(-3.0, 3.0)],
            bend: [rng.between(-0.5, 0.5), rng.between(-0.5, 0.5)],
            pen: rng.between(0.6, 1.6),
            ink: rng.between(170.0, 255.0),
        }
    }

    fn place(&self, [x, y]: [f32; 2]) -> [f32; 2] {
        let (u, v) = (x - 0.5, y - 0.5);
        let (u, v) = (u + self.bend[0] * v * v, v + self.bend[1] * u * u);
        let [[a, b], [c, d]] = self.map;
        [self.centre[0] + a * u + b * v, self.centre[1] + c * u + d * v]
    }
}

#[cfg(test)]
mod tests {
    use super::super::Digits;
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_digits_and_another_seed_draws_others() {
        let (a, b, c) = (Artist::new(7).draw(200), Artist::new(7).draw(200), Artist::new(8).draw(200));
        assert_eq!(a, b);
        assert_ne!(a, c);
    }

    #[test]
    fn the_three_parts_have_the_sizes_of_mnist_and_share_no_image() {
        let digits = Digits::synthetic(1);
        for (part, len) in [(&digits.train, 55_000), (&digits.validation, 5_000), (&digits.test, 10_000)] {
            assert_eq!((part.len(), part.rows, part.columns), (len, 28, 28));
            assert_eq!(part.pixels.len(), len * 784);
        }
        assert_ne!(digits.train.pixels[..784], digits.validation.pixels[..784]);
        assert_ne!(digits.validation.pixels[..784], digits.test.pixels[..784]);
    }

    #[test]
    fn all_classes_are_about_equally_frequent_from_the_start() {
        let labels = Artist::new(3).draw(5_000).labels;
        for digit in 0..10 {
            let count = labels.iter().filter(|label| **label == digit).count();
            assert!((400..600).contains(&count), "{count} of {digit}");
        }
    }

    #[test]
    fn every_image_shows_ink_on_a_mostly_dark_ground() {
        for image in Artist::new(5).draw(2_000).pixels.chunks_exact(PIXELS) {
            let lit = image.iter().filter(|grey| **grey > 128).count();
            assert!((10..PIXELS / 2).contains(&lit), "{lit} pixels are lit");
        }
    }

    #[test]
    fn greys_are_rounded_over_their_whole_range() {
        for eighths in 0..=255 * 8 {
            let value = eighths as f32 / 8.0;
            assert_eq!(to_grey(value), value.round_ties_even() as u8, "{value}");
        }
    }

    #[test]
    fn a_stroke_outside_of_the_image_marks_nothing_and_a_crossing_one_only_what_is_inside() {
        let mut distances = [FAR; PIXELS];
        mark(&mut distances, [-50.0, -50.0], [-10.0, 5.0], 2.0);
        mark(&mut distances, [40.0, 3.0], [90.0, 3.0], 2.0);
        assert!(distances.iter().all(|distance| *distance == FAR));
        mark(&mut distances, [-5.0, 3.0], [90.0, 3.0], 1.0);
        let marked = distances.iter().filter(|distance| **distance < FAR).count();
        assert_eq!(marked, 3 * SIDE);
        assert!(distances[3 * SIDE..4 * SIDE].iter().all(|distance| *distance < 1e-6));
    }
}
