//! Small data sets.

use serde_json::json;

/// Chats of one question and one answer that a tiny model can learn by heart, one a line.
pub fn chats(count: usize) -> String {
    (0..count)
        .map(|i| {
            let row = json!({"messages": [
                {"role": "user", "content": format!("load car {}", i % 7)},
                {"role": "assistant", "content": "aye aye"},
            ]});
            format!("{row}\n")
        })
        .collect()
}
