//! What takes part in the simulation: numbers by chance, adapters, and what honest and bad workers make of them.

/// A small generator of the same numbers every time (splitmix64).
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, count: u64) -> u64 {
        self.roll() % count
    }

    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// SHA-256.
pub fn digest(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    hex::encode(Sha256::digest(bytes))
}

/// A safetensors file of two f32 tensors with these values.
pub fn adapter(values: &[f32]) -> Vec<u8> {
    let half = values.len() / 2;
    let header = format!(
        r#"{{"a.lora_A.weight":{{"dtype":"F32","shape":[{half}],"data_offsets":[0,{}]}},"a.lora_B.weight":{{"dtype":"F32","shape":[{half}],"data_offsets":[{},{}]}}}}"#,
        4 * half,
        4 * half,
        8 * half
    );
    let mut header = header.into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(&header);
    file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    file
}

/// The values of such a file.
pub fn values(file: &[u8]) -> Vec<f32> {
    let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let values = file[start..].chunks_exact(4);
    values
        .map(|value| f32::from_le_bytes(value.try_into().unwrap()))
        .collect()
}

/// What an honest worker makes of the global adapter.
pub fn good_result(global: &[u8], round: u64, worker: u64) -> Vec<u8> {
    let mut dice = Dice(round << 8 | worker);
    let trained: Vec<f32> = values(global)
        .into_iter()
        .map(|value| value + (dice.below(2_000) as f32 - 1_000.0) * 1e-5)
        .collect();
    adapter(&trained)
}

/// A bad upload: cut off, with NaN, of another shape, no safetensors at all, or far too large a change.
pub fn spoilt(good: Vec<u8>, dice: &mut Dice) -> Vec<u8> {
    let mut values = values(&good);
    match dice.below(5) {
        0 => good[..good.len() - 1 - dice.below(64) as usize].to_vec(),
        1 => {
            values[dice.below(64) as usize] = f32::NAN;
            adapter(&values)
        }
        2 => adapter(&values[..62]),
        3 => vec![0x80; 512],
        _ => {
            let far: Vec<f32> = values.iter().map(|value| value + 1e3).collect();
            adapter(&far)
        }
    }
}
