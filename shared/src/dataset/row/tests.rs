//! Which lines are rows, and what is said of those that are none.

use super::*;
use crate::training::TrainOn;

fn row(line: &str) -> Row {
    parse_row(line.as_bytes()).unwrap_or_else(|problem| panic!("{line}: {problem}"))
}

fn problem(line: &str) -> String {
    match parse_row(line.as_bytes()) {
        Ok(row) => panic!("{line} was taken as {row:?}"),
        Err(problem) => problem.to_string(),
    }
}

fn turn(role: Role, content: &str) -> Turn {
    Turn {
        role,
        content: content.to_owned(),
    }
}

#[test]
fn g066_the_five_shapes_are_recognised_row_by_row() {
    assert_eq!(
        row(r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#),
        Row::Messages(vec![turn(Role::User, "a"), turn(Role::Assistant, "b")])
    );
    assert_eq!(
        row(
            r#"{"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}],"system":"s"}"#
        ),
        Row::Conversations(vec![
            turn(Role::System, "s"),
            turn(Role::User, "a"),
            turn(Role::Assistant, "b")
        ])
    );
    assert_eq!(
        row(r#"{"instruction":"a","input":"","output":"b"}"#),
        Row::Instruction {
            system: None,
            instruction: "a".into(),
            input: None,
            output: "b".into()
        }
    );
    assert_eq!(
        row(r#"{"prompt":"a","completion":"b"}"#),
        Row::PromptCompletion {
            prompt: Prompt::Text("a".into()),
            completion: Prompt::Text("b".into())
        }
    );
    assert_eq!(
        row(
            r#"{"prompt":[{"role":"user","content":"a"}],"completion":[{"role":"assistant","content":"b"}]}"#
        ),
        Row::PromptCompletion {
            prompt: Prompt::Turns(vec![turn(Role::User, "a")]),
            completion: Prompt::Turns(vec![turn(Role::Assistant, "b")]),
        }
    );
    assert_eq!(
        row(r#"{"text":"a","meta":{"id":7}}"#),
        Row::Text("a".into())
    );
}

#[test]
fn g066_an_unknown_row_is_refused_with_the_keys_that_it_has() {
    assert!(problem(r#"{"foo":1}"#).contains("it has `foo`;"));
    assert!(problem("{}").contains("no keys"));
    assert!(problem("[1]").contains("not an array"));
}

#[test]
fn g067_empty_and_null_structures_are_refused_by_name() {
    for (line, expected) in [
        (r#"{"messages":null}"#, "`messages` (null)"),
        (r#"{"messages":[]}"#, "messages: is empty"),
        (
            r#"{"messages":"hi"}"#,
            "messages: a list of messages is expected, not a string",
        ),
        (
            r#"{"messages":[null]}"#,
            "messages[0]: an object is expected, not null",
        ),
        (
            r#"{"messages":[{"role":"user"}]}"#,
            "messages[0].content: is missing",
        ),
        (
            r#"{"messages":[{"content":"x"}]}"#,
            "messages[0].role: is missing",
        ),
        (
            r#"{"messages":[{"role":"user","content":null}]}"#,
            "messages[0].content: a string is expected, not null",
        ),
        (
            r#"{"messages":[{"role":"narrator","content":"x"}]}"#,
            "messages[0].role: `narrator` is not known",
        ),
        (r#"{"prompt":"","completion":"x"}"#, "prompt: is empty"),
        (r#"{"prompt":"x"}"#, "completion: is missing"),
        (r#"{"completion":"x"}"#, "prompt: is missing"),
        (
            r#"{"prompt":"x","completion":[{"role":"assistant","content":"y"}]}"#,
            "completion: must be a text",
        ),
        (
            r#"{"instruction":"x","output":5}"#,
            "output: a string is expected, not a number",
        ),
        (
            r#"{"instruction":"","output":"x"}"#,
            "instruction: is empty",
        ),
        (
            r#"{"instruction":"x","input":["y"],"output":"z"}"#,
            "input: a string is expected, not an array",
        ),
        (r#"{"text":7}"#, "text: a string is expected, not a number"),
    ] {
        let found = problem(line);
        assert!(found.contains(expected), "{line}: {found}");
    }
}

#[test]
fn g067_text_parts_are_joined_and_other_parts_are_refused() {
    assert_eq!(
        row(
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]}]}"#
        ),
        Row::Messages(vec![turn(Role::User, "xy")])
    );
    let image = r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}]}"#;
    assert_eq!(
        problem(image),
        "messages[0].content[0]: parts of type `image_url` are not supported"
    );
    for wrong in [r#"[{"type":"text","text":null}]"#, r#"["x"]"#, "[]"] {
        problem(&format!(
            r#"{{"messages":[{{"role":"user","content":{wrong}}}]}}"#
        ));
    }
}

#[test]
fn tools_are_refused_and_not_left_out() {
    assert!(
        problem(r#"{"messages":[{"role":"user","content":"x"}],"tools":[{}]}"#)
            .starts_with("tools:")
    );
    let call = r#"{"messages":[{"role":"assistant","content":"","tool_calls":[{"id":"1"}]}]}"#;
    assert!(problem(call).starts_with("messages[0].tool_calls:"));
    row(r#"{"messages":[{"role":"user","content":"x","tool_calls":null}],"tools":null}"#);
}

#[test]
fn empty_lists_of_tools_are_no_tools() {
    for empty in ["[]", "{}", r#""""#] {
        row(&format!(
            r#"{{"messages":[{{"role":"assistant","content":"b","tool_calls":{empty},"function_call":{empty}}}],"tools":{empty}}}"#
        ));
    }
}

#[test]
fn keys_of_another_shape_beside_a_whole_row_are_ignored() {
    for line in [
        r#"{"text":"a","prompt":"unrelated"}"#,
        r#"{"text":"a","messages":[]}"#,
        r#"{"text":"a","prompt":"","completion":""}"#,
        r#"{"text":"a","instruction":"b"}"#,
    ] {
        assert_eq!(row(line), Row::Text("a".into()), "{line}");
    }
    assert_eq!(problem(r#"{"messages":[]}"#), "messages: is empty");
}

#[test]
fn all_trains_rows_without_an_answer_and_assistant_answers_of_a_prompt() {
    let question = row(r#"{"messages":[{"role":"user","content":"abc"}]}"#);
    assert!(question.is_trainable(TrainOn::All) && !question.is_trainable(TrainOn::Assistant));
    assert!(!row(r#"{"text":" "}"#).is_trainable(TrainOn::All));
    let in_prompt = row(
        r#"{"prompt":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],
            "completion":[{"role":"assistant","content":" "}]}"#,
    );
    assert!(in_prompt.is_trainable(TrainOn::Assistant) && !in_prompt.is_trainable(TrainOn::Auto));
}

#[test]
fn null_columns_do_not_decide_the_shape() {
    assert_eq!(
        row(r#"{"messages":null,"prompt":null,"text":"a"}"#),
        Row::Text("a".into())
    );
}

#[test]
fn g064_an_invalid_byte_is_named() {
    assert_eq!(
        parse_row(b"{\"text\":\"a\xc3\x28\"}"),
        Err(RowProblem::InvalidUtf8 { byte: 11 })
    );
}

#[test]
fn g068_a_lone_surrogate_is_refused_and_a_pair_is_one_character() {
    assert!(problem(r#"{"text":"a \ud83d b"}"#).contains("lone surrogate"));
    assert_eq!(row(r#"{"text":"\ud83d\ude0a"}"#), Row::Text("😊".into()));
}

#[test]
fn broken_and_doubled_json_is_refused_with_its_column() {
    assert!(problem(r#"{"text":"a""#).starts_with("not valid JSON at column 11"));
    assert!(problem(r#"{"text":"a","text":"b"}"#).contains("`text` stands twice"));
}

#[test]
fn g069_a_row_without_an_answer_has_nothing_to_train_on() {
    for line in [
        r#"{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":""}]}"#,
        r#"{"messages":[{"role":"user","content":"hi"}]}"#,
        r#"{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"   "}]}"#,
        r#"{"prompt":"a","completion":" "}"#,
        r#"{"instruction":"a","output":""}"#,
        r#"{"text":"\n"}"#,
    ] {
        assert!(!row(line).is_trainable(TrainOn::Auto), "{line}");
    }
    assert!(
        row(
            r#"{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yes"}]}"#
        )
        .is_trainable(TrainOn::Auto)
    );
    assert!(row(r#"{"text":"x"}"#).is_trainable(TrainOn::Auto));
}
