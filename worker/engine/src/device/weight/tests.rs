use super::*;
use crate::{
    device::{
        Activations, ActivationsMut, LANES,
        product::{Matrix, Product, Start, multiply},
    },
    ops::test_values::{blocks, values},
};

const CODED: [BlockType; 10] = [
    BlockType::F16,
    BlockType::Bf16,
    BlockType::Q8_0,
    BlockType::Q4_0,
    BlockType::Q4_1,
    BlockType::Q5_0,
    BlockType::Q5_1,
    BlockType::Q4K,
    BlockType::Q5K,
    BlockType::Q6K,
];

/// Bytes of a matrix that look random, but for their 16-bit floats, which are made small.
pub(crate) fn stored_bytes(block_type: BlockType, rows: usize, columns: usize) -> Vec<u8> {
    let blocks = rows * columns / block_type.values_per_block();
    let len = blocks * block_type.bytes_per_block();
    let mut bytes: Vec<u8> = values(7, len)
        .iter()
        .map(|value| (value * 128.0) as i8 as u8)
        .collect();
    // Where the upper bytes of 16-bit floats lie in a block.
    let floats: &[usize] = match block_type {
        BlockType::F32 => &[3],
        BlockType::F16 | BlockType::Bf16 => &[1],
        BlockType::Q8_0 | BlockType::Q4_0 | BlockType::Q5_0 => &[1],
        BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4K | BlockType::Q5K => &[1, 3],
        BlockType::Q6K => &[209],
    };
    for block in bytes.chunks_exact_mut(block_type.bytes_per_block()) {
        for &at in floats {
            block[at] = block[at] & 0x83 | 0x28;
        }
    }
    bytes
}

fn held(block_type: BlockType, bytes: &[u8], rows: usize, columns: usize) -> WeightMatrix {
    WeightMatrix::from_stored(StoredRows {
        block_type,
        bytes,
        rows,
        columns,
    })
    .unwrap()
}

#[test]
fn held_weights_are_the_values_of_the_file_and_take_up_what_they_do_there() {
    for block_type in CODED {
        for (rows, columns) in [(GROUP, 256), (2 * GROUP + 13, 512), (5, 256)] {
            let bytes = stored_bytes(block_type, rows, columns);
            let weight = held(block_type, &bytes, rows, columns);
            let expected = block_type.dequantise(&bytes);
            let found: Vec<f32> = (0..rows).flat_map(|row| weight.row(row)).collect();
            assert!(found == expected, "{block_type} {rows} x {columns}");

            let padded = bytes.len() / rows * rows.next_multiple_of(GROUP);
            let scales = match block_type {
                BlockType::Q4K | BlockType::Q5K => 4 * padded / block_type.bytes_per_block(),
                _ => 0,
            };
            assert_eq!(weight.bytes(), padded + scales, "{block_type}");
        }
    }
}

#[test]
fn sixteen_bit_weights_may_have_any_number_of_columns() {
    let (rows, columns) = (7, 45);
    for block_type in [BlockType::F16, BlockType::Bf16] {
        let bytes = stored_bytes(block_type, rows, columns);
        let weight = held(block_type, &bytes, rows, columns);
        let found: Vec<f32> = (0..rows).flat_map(|row| weight.row(row)).collect();
        assert_eq!(found, block_type.dequantise(&bytes));
    }
}

#[test]
fn unpacked_parts_are_panels_of_the_same_values() {
    let (rows, columns) = (2 * GROUP + 13, 512);
    for block_type in CODED {
        let bytes = stored_bytes(block_type, rows, columns);
        let WeightMatrix::Coded(coded) = held(block_type, &bytes, rows, columns) else {
            panic!("{block_type} is held as f32");
        };
        for (part, from, to) in [
            ((0, rows), 0, columns),
            ((24, 72), 17, 100),
            ((96, rows), 480, 490),
        ] {
            let width = to - from;
            let panels = (part.1 - part.0).div_ceil(12);
            let mut out = vec![f32::NAN; panels * 12 * width];
            coded.unpack(&mut out, part, (from, to));
            for row in part.0..part.1 {
                for column in from..to {
                    let (panel, lane) = ((row - part.0) / 12, (row - part.0) % 12);
                    let found = out[(panel * width + column - from) * 12 + lane];
                    assert_eq!(
                        found,
                        coded.value(row, column),
                        "{block_type} {row} {column}"
                    );
                }
            }
            assert!(
                out.iter().all(|value| value.is_finite()),
                "missing rows are zero"
            );
        }
    }
}

#[test]
fn products_are_the_same_bits_as_with_the_unpacked_values() {
    let tokens = 40;
    // F16 once more with values of bf16, as files made of most published models have them.
    let kinds = CODED.map(|block_type| (block_type, false));
    for (block_type, are_bf16) in kinds.into_iter().chain([(BlockType::F16, true)]) {
        for (rows, columns) in [(2 * GROUP + 13, 512), (1700, 256)] {
            let mut bytes = stored_bytes(block_type, rows, columns);
            if are_bf16 {
                // Of an f16 seven bits behind the point are left.
                bytes.iter_mut().step_by(2).for_each(|low| *low &= 0xF8);
            }
            let coded = held(block_type, &bytes, rows, columns);
            let unpacked =
                WeightMatrix::from_f32(&block_type.dequantise(&bytes), rows, columns).unwrap();
            let x = blocks(&values(1, tokens * columns), tokens);
            let dy = blocks(&values(2, tokens * rows), tokens);
            let forward = |weight: &WeightMatrix| {
                let (matrix, input) = (Matrix::Weight(weight), Activations::new(&x, columns));
                let mut y = vec![f32::NAN; 2 * LANES * rows];
                let product = Product { matrix, input };
                multiply(
                    &mut ActivationsMut::new(&mut y, rows),
                    Start::Zero,
                    &[product],
                    1.0,
                );
                y
            };
            let backward = |weight: &WeightMatrix| {
                let (matrix, input) = (
                    Matrix::WeightTransposed(weight),
                    Activations::new(&dy, rows),
                );
                let mut dx = vec![f32::NAN; 2 * LANES * columns];
                let products = [Product { matrix, input }; 2];
                multiply(
                    &mut ActivationsMut::new(&mut dx, columns),
                    Start::Zero,
                    &products,
                    1.0,
                );
                dx
            };
            assert!(
                forward(&coded) == forward(&unpacked),
                "{block_type} forward"
            );
            assert!(
                backward(&coded) == backward(&unpacked),
                "{block_type} backward"
            );
        }
    }
}
