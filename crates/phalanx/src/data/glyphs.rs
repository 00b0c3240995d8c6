//! The shapes of the ten digits, as strokes in a unit square: x to the right, y downwards.
//!
//! Each digit can be written in more than one way, as people do.

use std::f32::consts::PI;

/// One movement of the pen.
enum Stroke {
    /// Straight lines from point to point.
    Lines(&'static [[f32; 2]]),
    /// Part of an ellipse, from one angle to another, in half turns: 0 is right, 0.5 down, 1 left.
    Arc { centre: [f32; 2], radii: [f32; 2], from: f32, to: f32 },
}

use Stroke::Lines;

const fn arc(centre: [f32; 2], radii: [f32; 2], from: f32, to: f32) -> Stroke {
    Stroke::Arc { centre, radii, from, to }
}

/// Every way in which each digit is written.
const WAYS: [&[&[Stroke]]; 10] = [
    &[&[arc([0.5, 0.5], [0.32, 0.48], 0.0, 2.0)], &[arc([0.5, 0.5], [0.24, 0.48], 0.0, 2.0)]],
    &[
        &[Lines(&[[0.5, 0.02], [0.5, 0.98]])],
        &[Lines(&[[0.3, 0.22], [0.55, 0.02], [0.55, 0.98]])],
        &[Lines(&[[0.3, 0.22], [0.52, 0.02], [0.52, 0.98]]), Lines(&[[0.28, 0.98], [0.76, 0.98]])],
    ],
    &[
        &[arc([0.48, 0.3], [0.3, 0.28], -0.9, 0.25), Lines(&[[0.69, 0.5], [0.18, 0.97], [0.84, 0.97]])],
        &[
            arc([0.48, 0.3], [0.3, 0.28], -0.9, 0.25),
            Lines(&[[0.69, 0.5], [0.3, 0.86]]),
            arc([0.24, 0.88], [0.1, 0.09], -0.3, -2.0),
            Lines(&[[0.34, 0.88], [0.6, 0.98], [0.86, 0.9]]),
        ],
    ],
    &[
        &[arc([0.46, 0.26], [0.28, 0.24], -0.85, 0.5), arc([0.46, 0.74], [0.32, 0.25], -0.5, 0.85)],
        &[Lines(&[[0.2, 0.03], [0.74, 0.03], [0.44, 0.4]]), arc([0.44, 0.69], [0.32, 0.29], -0.5, 0.8)],
    ],
    &[
        &[Lines(&[[0.62, 0.98], [0.62, 0.02], [0.14, 0.66], [0.88, 0.66]])],
        &[Lines(&[[0.24, 0.04], [0.2, 0.52], [0.74, 0.52]]), Lines(&[[0.72, 0.04], [0.7, 0.98]])],
    ],
    &[
        &[Lines(&[[0.78, 0.03], [0.28, 0.03], [0.24, 0.44]]), arc([0.46, 0.68], [0.33, 0.29], -0.75, 0.85)],
        &[
            Lines(&[[0.82, 0.05], [0.34, 0.03], [0.3, 0.4], [0.46, 0.4]]),
            arc([0.46, 0.69], [0.28, 0.29], -0.5, 0.9),
        ],
    ],
    &[
        &[arc([0.5, 0.7], [0.28, 0.27], 0.0, 2.0), arc([0.72, 0.7], [0.5, 0.68], -1.0, -0.5)],
        &[Lines(&[[0.62, 0.02], [0.36, 0.36], [0.25, 0.7]]), arc([0.5, 0.72], [0.25, 0.26], 0.0, 2.0)],
    ],
    &[
        &[Lines(&[[0.16, 0.04], [0.82, 0.04], [0.4, 0.98]])],
        &[Lines(&[[0.16, 0.04], [0.82, 0.04], [0.4, 0.98]]), Lines(&[[0.36, 0.5], [0.78, 0.5]])],
        &[Lines(&[[0.16, 0.18], [0.18, 0.04], [0.8, 0.04], [0.58, 0.5], [0.5, 0.98]])],
    ],
    &[
        &[arc([0.5, 0.26], [0.24, 0.24], 0.0, 2.0), arc([0.5, 0.74], [0.3, 0.24], 0.0, 2.0)],
        &[arc([0.5, 0.26], [0.24, 0.24], -2.0, -0.2), arc([0.5, 0.74], [0.26, 0.24], 0.0, 2.0)],
    ],
    &[
        &[arc([0.5, 0.3], [0.28, 0.27], 0.0, 2.0), Lines(&[[0.78, 0.3], [0.76, 0.6], [0.66, 0.98]])],
        &[arc([0.5, 0.3], [0.27, 0.27], 0.0, 2.0), arc([0.34, 0.4], [0.43, 0.57], -0.1, 0.55)],
        &[arc([0.48, 0.28], [0.27, 0.26], 0.0, 2.0), Lines(&[[0.75, 0.1], [0.75, 0.98]])],
    ],
];

/// A digit's strokes, each as points to be joined by straight lines.
pub(super) type Glyph = Vec<Vec<[f32; 2]>>;

/// All ways of writing each of the ten digits, with the curves made straight.
pub(super) fn all() -> [Vec<Glyph>; 10] {
    WAYS.map(|ways| ways.iter().map(|strokes| strokes.iter().map(points).collect()).collect())
}

fn points(stroke: &Stroke) -> Vec<[f32; 2]> {
    match *stroke {
        Stroke::Lines(points) => points.to_vec(),
        Stroke::Arc { centre: [x, y], radii: [rx, ry], from, to } => {
            // Six chords to the half turn: at this size of image nobody can tell them from a curve.
            let chords = ((to - from).abs() * 6.0).ceil().max(2.0) as usize;
            let angle = |i: usize| (from + (to - from) * i as f32 / chords as f32) * PI;
            (0..=chords).map(|i| [x + rx * angle(i).cos(), y + ry * angle(i).sin()]).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_digit_has_several_ways_that_stay_within_the_unit_square() {
        for (digit, ways) in all().iter().enumerate() {
            assert!(ways.len() >= 2, "{digit}");
            for stroke in ways.iter().flatten() {
                assert!(stroke.len() >= 2, "{digit}");
                assert!(stroke.iter().flatten().all(|v| (0.0..=1.0).contains(v)), "{digit}: {stroke:?}");
            }
        }
    }
}
