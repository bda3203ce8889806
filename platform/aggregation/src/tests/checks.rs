//! What uploads are taken and what is said of those that are not.

use trainyard_engine::export::FloatType;

use super::*;

fn two() -> Vec<Tensor> {
    vec![
        tensor("first", &[2, 3], &[0.5; 6]),
        tensor("second", &[4], &[0.25; 4]),
    ]
}

/// A file with a header of one's own.
fn by_hand(header: &str, data: &[u8]) -> Vec<u8> {
    let length = (header.len() as u64).to_le_bytes();
    [length.as_slice(), header.as_bytes(), data].concat()
}

#[test]
fn g105_values_that_are_not_finite_are_refused_by_key_and_a_corrected_upload_is_taken() {
    for float_type in [FloatType::F32, FloatType::F16, FloatType::Bf16] {
        let mut sound = two();
        for tensor in &mut sound {
            tensor.float_type = float_type;
        }
        let mut round = Round::of(&sound);
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in 0..4 {
                let mut upload = sound.clone();
                upload[1].values[place] = wrong;
                let refusal = round.refusal(&file_of(&upload));
                assert!(
                    refusal.contains("second"),
                    "{float_type} {wrong}: {refusal}"
                );
                assert!(refusal.contains(&format!("place {place}")), "{refusal}");
            }
        }
        assert!(round.updates.is_empty());
        round.give("refused", &sound);
        assert_eq!(round.merge().kept, ["refused"]);
    }
}

#[test]
fn g106_nothing_of_an_upload_that_is_refused_gets_into_the_result() {
    let mut good = two();
    good[0].values[3] = 0.75;
    let mut alone = Round::of(&two());
    alone.give("ali", &good);
    let expected = alone.merge();

    let mut round = Round::of(&two());
    round.give("ali", &good);
    let mut huge = two();
    huge[0].values.fill(1e30);
    let whole = file_of(&huge);
    let cut_off = round.refusal(&whole[..whole.len() - 4]);
    assert!(cut_off.contains("incomplete"), "{cut_off}");
    huge[1].shape = vec![2, 2];
    let reshaped = round.refusal(&file_of(&huge));
    assert!(reshaped.contains("second"), "{reshaped}");
    assert_eq!(round.merge(), expected);
}

#[test]
fn keys_shapes_and_types_must_be_those_of_the_global_adapter() {
    let mut round = Round::of(&two());
    let missing = round.refusal(&file_of(&two()[..1]));
    assert_eq!(missing, "tensor second is missing");

    let mut more = two();
    more.push(tensor("third", &[1], &[0.0]));
    let unknown = round.refusal(&file_of(&more));
    assert_eq!(unknown, "tensor third is not in the global adapter");

    let mut renamed = two();
    renamed[0].name = "erste";
    let missing = round.refusal(&file_of(&renamed));
    assert_eq!(missing, "tensor first is missing");

    let mut turned = two();
    turned[0].shape = vec![3, 2];
    let shape = round.refusal(&file_of(&turned));
    assert_eq!(shape, "tensor first has shape [3, 2], expected [2, 3]");

    let mut halved = two();
    halved[1].float_type = FloatType::Bf16;
    let float_type = round.refusal(&file_of(&halved));
    assert_eq!(float_type, "tensor second is BF16, expected F32");

    let numbers = r#"{"first":{"dtype":"I32","shape":[2,3],"data_offsets":[0,24]},"second":{"dtype":"F32","shape":[4],"data_offsets":[24,40]}}"#;
    let integers = round.refusal(&by_hand(numbers, &[0; 40]));
    assert_eq!(integers, "tensor first is I32, expected F32");
}

#[test]
fn a_header_that_claims_what_the_body_does_not_have_is_refused() {
    let mut round = Round::of(&scalar(0.0));
    let entry = |end: &str, shape: &str| {
        format!(r#"{{"a":{{"dtype":"F32","shape":[{shape}],"data_offsets":[0,{end}]}}}}"#)
    };
    let of = |offsets: &str| {
        format!(r#"{{"a":{{"dtype":"F32","shape":[1],"data_offsets":[{offsets}]}}}}"#)
    };
    let hostile = [
        Vec::new(),
        vec![1, 2, 3],
        u64::MAX.to_le_bytes().to_vec(),
        [40_u64.to_le_bytes().as_slice(), b"{}"].concat(),
        by_hand("{}", &[]),
        by_hand("[]", &[0; 4]),
        by_hand(&entry("4", "1"), &[]),
        by_hand(&entry("4", "1"), &[0; 5]),
        by_hand(&entry("4000000000", "1000000000"), &[0; 4]),
        by_hand(&entry("4", "4611686018427387905"), &[0; 4]),
        by_hand(&of("4,8"), &[0; 8]),
        by_hand(&of("4,0"), &[0; 4]),
        by_hand(&of("-4,0"), &[0; 4]),
        by_hand(
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
            &[0; 8],
        ),
        by_hand(
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}"#,
            &[0; 6],
        ),
    ];
    for file in hostile {
        let refusal = round.refusal(&file);
        assert!(!refusal.is_empty(), "{file:?}");
    }
    assert!(round.updates.is_empty());
}

#[test]
fn a_header_far_longer_than_needed_is_not_even_read() {
    let mut round = Round::of(&scalar(0.0));
    let remark = "x".repeat(100_000);
    let header = format!(
        r#"{{"__metadata__":{{"remark":"{remark}"}},"a":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#
    );
    let refusal = round.refusal(&by_hand(&header, &[0; 4]));
    assert!(refusal.contains("header"), "{refusal}");
    let fitting = header.replace(&remark, "a short one");
    round.upload("ali", &by_hand(&fitting, &[0; 4])).unwrap();
}

#[test]
fn tensors_may_lie_in_any_order_and_at_any_address() {
    let mut round = Round::of(&two());
    let mut turned = two();
    turned[0].values = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    turned.reverse();
    let mut file = file_of(&turned);
    let length = u64::from_le_bytes(*file.first_chunk().unwrap());
    file.splice(..8, (length + 1).to_le_bytes());
    let data = 8 + usize::try_from(length).unwrap();
    file.insert(data, b' ');
    round.upload("ali", &file).unwrap();
    round.rule = Rule::Mean;
    round.merge();
    assert_eq!(
        round.merged_values()["first"],
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    );
}

#[test]
fn the_delta_norm_is_the_l2_norm_over_all_tensors_and_may_be_limited() {
    let mut round = Round::of(&two());
    let mut upload = two();
    upload[0].values[5] += 3.0;
    upload[1].values[0] -= 4.0;
    assert_eq!(round.give("ali", &upload), 5.0);
    let path = round.path("ali.update");
    assert!(check(&path, &round.global, Some(5.0)).is_ok());
    let refused = check(&path, &round.global, Some(4.9)).unwrap_err();
    assert!(refused.to_string().contains("norm"), "{refused}");
}

#[test]
fn names_of_strangers_are_repeated_without_control_characters_and_cut() {
    let mut round = Round::of(&scalar(0.0));
    let name = "\\u001b[2J".to_owned() + &"n".repeat(3000);
    let header = format!(
        r#"{{"a":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}},"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}}}"#
    );
    let refusal = round.refusal(&by_hand(&header, &[0; 8]));
    assert!(refusal.len() < 300, "{refusal}");
    assert!(!refusal.contains('\u{1b}'), "{refusal}");
}
