//! Models: which there are, what a name stands for, and where the files of an adapter lie.

pub mod list;
pub mod target;

/// `org/name`, or `name` alone, of the characters that the hub allows.
pub fn is_hub_name(text: &str) -> bool {
    let parts: Vec<&str> = text.split('/').collect();
    let is_part = |part: &&str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && !part.contains("..")
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    text.len() <= MAX_NAME_BYTES && parts.len() <= 2 && parts.iter().all(is_part)
}

/// Longest name of a base model.
const MAX_NAME_BYTES: usize = 200;

#[cfg(test)]
mod tests {
    use super::is_hub_name;

    #[test]
    fn a_model_s_name_is_one_or_two_plain_parts() {
        for name in [
            "yard/tiny",
            "gpt2",
            "HuggingFaceTB/SmolLM2-135M-Instruct",
            "a/b_c.d",
        ] {
            assert!(is_hub_name(name), "{name}");
        }
        for name in [
            "", "/", "a/", "/a", "a/b/c", "../x", "a/..", "a b", "a\\b", ".a/b", "a/\u{e4}", "-x",
        ] {
            assert!(!is_hub_name(name), "{name}");
        }
    }
}
