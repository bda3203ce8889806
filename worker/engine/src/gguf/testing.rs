//! Writes small GGUF files for tests.

use half::{bf16, f16};

use super::BlockType;

/// A file in the making.
#[derive(Default)]
pub(crate) struct GgufWriter {
    metadata: Vec<u8>,
    metadata_count: u64,
    infos: Vec<u8>,
    tensor_count: u64,
    data: Vec<u8>,
}

impl GgufWriter {
    /// A file with the metadata of a Llama of the golden values' shape.
    pub(crate) fn llama() -> Self {
        let mut writer = Self::default();
        writer.string("general.architecture", "llama");
        for (key, value) in [
            ("context_length", 256),
            ("embedding_length", 64),
            ("block_count", 2),
            ("feed_forward_length", 128),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("rope.dimension_count", 16),
        ] {
            writer.u32(&format!("llama.{key}"), value);
        }
        writer.f32("llama.rope.freq_base", 10_000.0);
        writer.f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
        writer
    }

    pub(crate) fn string(&mut self, key: &str, value: &str) {
        self.key(key, 8);
        put_text(&mut self.metadata, value);
    }

    pub(crate) fn u32(&mut self, key: &str, value: u32) {
        self.key(key, 4);
        self.metadata.extend(value.to_le_bytes());
    }

    pub(crate) fn f32(&mut self, key: &str, value: f32) {
        self.key(key, 6);
        self.metadata.extend(value.to_le_bytes());
    }

    pub(crate) fn bool(&mut self, key: &str, value: bool) {
        self.key(key, 7);
        self.metadata.push(u8::from(value));
    }

    pub(crate) fn strings(&mut self, key: &str, values: &[&str]) {
        self.array(key, 8, values.len());
        for value in values {
            put_text(&mut self.metadata, value);
        }
    }

    pub(crate) fn i32s(&mut self, key: &str, values: &[i32]) {
        self.array(key, 5, values.len());
        self.metadata
            .extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    /// Adds a tensor whose values are as near to `values` as `block_type` allows.
    pub(crate) fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        block_type: BlockType,
        values: &[f32],
    ) {
        self.raw_tensor(
            name,
            shape,
            type_id(block_type),
            &quantise(block_type, values),
        );
    }

    pub(crate) fn raw_tensor(&mut self, name: &str, shape: &[usize], type_id: u32, bytes: &[u8]) {
        put_text(&mut self.infos, name);
        self.infos.extend((shape.len() as u32).to_le_bytes());
        for size in shape.iter().rev() {
            self.infos.extend((*size as u64).to_le_bytes());
        }
        self.infos.extend(type_id.to_le_bytes());
        self.infos.extend((self.data.len() as u64).to_le_bytes());
        self.tensor_count += 1;
        self.data.extend(bytes);
        self.data.resize(self.data.len().next_multiple_of(32), 0);
    }

    pub(crate) fn finish(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend(self.tensor_count.to_le_bytes());
        file.extend(self.metadata_count.to_le_bytes());
        file.extend(&self.metadata);
        file.extend(&self.infos);
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(&self.data);
        file
    }

    fn key(&mut self, key: &str, value_type: u32) {
        put_text(&mut self.metadata, key);
        self.metadata.extend(value_type.to_le_bytes());
        self.metadata_count += 1;
    }

    fn array(&mut self, key: &str, value_type: u32, count: usize) {
        self.key(key, 9);
        self.metadata.extend(value_type.to_le_bytes());
        self.metadata.extend((count as u64).to_le_bytes());
    }
}

fn type_id(block_type: BlockType) -> u32 {
    (0..64)
        .find(|&id| BlockType::from_id(id) == Some(block_type))
        .expect("every type has a number")
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn quantise(block_type: BlockType, values: &[f32]) -> Vec<u8> {
    values
        .chunks(block_type.values_per_block())
        .flat_map(|block| quantise_block(block_type, block))
        .collect()
}

fn quantise_block(block_type: BlockType, x: &[f32]) -> Vec<u8> {
    let largest = x.iter().fold(0f32, |a, b| a.max(b.abs()));
    let scale = |d: f32| f16::from_f32(if d == 0.0 { 1.0 } else { d });
    let halves = |q: Vec<u8>| (0..16).map(|i| q[i] | q[i + 16] << 4).collect::<Vec<u8>>();
    match block_type {
        BlockType::F32 => x[0].to_le_bytes().to_vec(),
        BlockType::F16 => f16::from_f32(x[0]).to_le_bytes().to_vec(),
        BlockType::Bf16 => bf16::from_f32(x[0]).to_le_bytes().to_vec(),
        BlockType::Q8_0 => {
            let d = scale(largest / 127.0);
            let q = x
                .iter()
                .map(|x| ((x / d.to_f32()).round() as i8).cast_unsigned());
            d.to_le_bytes().into_iter().chain(q).collect()
        }
        BlockType::Q4_0 => {
            let d = scale(largest / 7.0);
            let q = x
                .iter()
                .map(|x| (x / d.to_f32() + 8.0).round().clamp(0.0, 15.0) as u8)
                .collect();
            d.to_le_bytes().into_iter().chain(halves(q)).collect()
        }
        BlockType::Q4_1 => {
            let low = x.iter().fold(f32::INFINITY, |a, &b| a.min(b));
            let high = x.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
            let (d, m) = (scale((high - low) / 15.0), f16::from_f32(low));
            let q = x
                .iter()
                .map(|x| ((x - m.to_f32()) / d.to_f32()).round().clamp(0.0, 15.0) as u8)
                .collect();
            d.to_le_bytes()
                .into_iter()
                .chain(m.to_le_bytes())
                .chain(halves(q))
                .collect()
        }
        _ => panic!("no test writes {block_type}"),
    }
}
