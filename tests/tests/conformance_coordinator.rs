//! `trainyard conformance coordinator`: ours passes, a coordinator written from the document passes, and one with a
//! fault fails just the rules that say so.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use trainyard_tests::judge::{self, Judged};
use trainyard_tests::model::TINY_MODEL_ID;
use trainyard_tests::reference_coordinator::{Fault, Settings};
use trainyard_tests::{Client, Platform, ReferenceCoordinator, TinyModel, dataset, eventually};

/// Rules that are looked at only where there is a shared key.
const OF_KEYS: &[&str] = &["key.right", "key.missing", "key.wrong", "key.before_body"];
/// The rule of those without one.
const WITHOUT_KEY: &str = "key.ignored";
/// Rules about data that the coordinator serves.
const OF_DATA: &[&str] = &[
    "veri.task",
    "veri.served",
    "veri.bilgi",
    "veri.sha256",
    "veri.task_digest",
    "veri.ids",
    "veri.etiket",
    "veri.belirtec",
    "veri.sft_etiket",
    "veri.out_of_range",
    "veri.not_a_number",
];
/// The rule of those who serve none.
const WITHOUT_DATA: &str = "veri.none";
/// Rules that are looked at only with `--to-the-end`.
const OF_THE_END: &[&str] = &["end.bitti", "end.refuses", "end.agirlik", "end.bilgi"];
/// The rule that is looked at only with `--wait-seconds`.
const OF_TIMEOUTS: &str = "round.timeout";

const KEY: &str = "yard-key-7";

/// Judges what is at that address.
async fn judge_at(url: &str, more: &[&str]) -> Judged {
    let fixed = ["coordinator", url, "--quiet-for", "0.2"];
    judge::judged(judge::start(&[&fixed, more].concat(), &[])).await
}

/// Judges a coordinator with that fault.
async fn judge_faulty(settings: &Settings, fault: Fault, more: &[&str]) -> Judged {
    let coordinator = ReferenceCoordinator::start(settings.clone(), fault);
    let key = settings.key.as_deref();
    let key: Vec<&str> = key.iter().flat_map(|key| ["--anahtar", key]).collect();
    let quick = ["--merge-within", "3"];
    judge_at(coordinator.url(), &[&key[..], &quick, more].concat()).await
}

/// Judges a coordinator with each fault, all at the same time.
async fn expect_exactly(settings: Settings, more: &[&str], variants: &[(Fault, &[&str])]) {
    let judging = variants.iter().map(async |(fault, broken)| {
        let judged = judge_faulty(&settings, *fault, more).await;
        let failed = judged.with_result("fail");
        let required = judged.report["required"]["failed"].as_u64();
        let exit_code = if required == Some(0) { 0 } else { 1 };
        let is_right =
            failed == broken.iter().copied().collect() && judged.exit_code == Some(exit_code);
        (!is_right).then(|| format!("{fault:?} has to break {broken:?}:\n{}", judged.faults()))
    });
    let wrong: Vec<String> = join_all(judging).await.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn with_key() -> Settings {
    Settings {
        key: Some(KEY.to_owned()),
        ..Settings::default()
    }
}

/// Makes a session on our platform and waits until it is open.
async fn open(admin: &Client, mut session: Value) {
    session["base_model"] = json!(TINY_MODEL_ID);
    session["en_az"] = json!(3);
    let made = admin.post("/api/coordinators", session).await.ok();
    let address = format!("/api/coordinators/{}", made["id"]);
    eventually("an open session", async || {
        let shown = admin.get(&address).await.ok();
        assert_ne!(shown["status"], "failed", "{shown}");
        (shown["status"] == "open").then_some(())
    })
    .await;
}

#[tokio::test]
async fn our_coordinator_conforms_in_every_rule() {
    let models = TinyModel::create();
    let folder = models.models_dir().display().to_string();
    let settings = [("MODELS_DIR", folder.as_str()), ("HF_HUB_OFFLINE", "true")];
    let platform = Platform::start_with(&settings).await;
    let admin = platform.admin().await;
    let dataset = admin.dataset("chats", &dataset::chats(40)).await;
    let with_all = json!({
        "name": "judged", "dataset_id": dataset, "n_parca": 2, "mod": "sft", "anahtar": KEY, "toplam_tur": 60,
        "tur_zaman_asimi": 8,
    });
    open(&admin, with_all).await;
    let url = format!("{}/c/judged", platform.url());
    let more = ["--anahtar", KEY, "--wait-seconds", "60", "--to-the-end"];
    judge_at(&url, &more)
        .await
        .assert_conforms(&[WITHOUT_KEY, WITHOUT_DATA]);

    let without =
        json!({"name": "bare", "default": true, "toplam_tur": 1000, "tur_zaman_asimi": 0});
    open(&admin, without).await;
    let skipped = [OF_KEYS, OF_DATA, OF_THE_END, &[OF_TIMEOUTS]].concat();
    judge_at(&platform.url(), &[])
        .await
        .assert_conforms(&skipped);
}

#[tokio::test]
async fn a_coordinator_written_from_the_document_conforms_to_its_end() {
    let settings = Settings {
        total_rounds: 40,
        round_timeout: Some(Duration::from_secs(6)),
        ..with_key()
    };
    let more = ["--wait-seconds", "60", "--to-the-end"];
    let judged = judge_faulty(&settings, Fault::None, &more).await;
    judged.assert_conforms(&[WITHOUT_KEY, WITHOUT_DATA]);
}

#[tokio::test]
async fn a_coordinator_without_key_and_data_conforms() {
    let settings = Settings {
        shards: None,
        ..Settings::default()
    };
    let judged = judge_faulty(&settings, Fault::None, &[]).await;
    let skipped = [OF_KEYS, OF_DATA, OF_THE_END, &[OF_TIMEOUTS]].concat();
    judged.assert_conforms(&skipped);
}

#[tokio::test]
async fn rules_that_a_session_of_one_result_a_round_hides_are_skipped_with_the_reason() {
    let settings = Settings {
        enough: 1,
        ..Settings::default()
    };
    let judged = judge_faulty(&settings, Fault::None, &[]).await;
    let hidden = [
        "isci.percent_decoded",
        "bilgi.gelen",
        "agirlik.within_round",
        "sonuc.wait",
        "sonuc.counted_once",
        "sonuc.second",
        "sonuc.repeat",
        "round.goes_on",
        "round.outlier",
    ];
    let skipped = [OF_KEYS, OF_THE_END, &hidden, &[OF_TIMEOUTS, WITHOUT_DATA]];
    judged.assert_conforms(&skipped.concat());
}

#[tokio::test]
async fn a_locked_session_is_not_judged_without_its_key_or_with_a_wrong_one() {
    let coordinator = ReferenceCoordinator::start(with_key(), Fault::None);
    expect_not_judged(coordinator.url(), &[], "--anahtar").await;
    let wrong = ["--anahtar", "another"];
    expect_not_judged(coordinator.url(), &wrong, "refuses the key").await;
}

/// Panics unless the judge gives up at once, says why and does not succeed.
async fn expect_not_judged(url: &str, more: &[&str], why: &str) {
    let judged = judge_at(url, more).await;
    assert_eq!(judged.exit_code, Some(1));
    assert_eq!(judged.report["conforms"], false);
    assert_eq!(judged.report["rules"], json!([]), "{}", judged.faults());
    let told = judged.report["not_judged"].as_str().unwrap_or_default();
    assert!(told.contains(why), "{told}");
}

#[tokio::test]
async fn where_there_is_no_session_nothing_is_judged() {
    expect_not_judged("http://127.0.0.1:1", &[], "http://127.0.0.1:1").await;
    let platform = Platform::start().await;
    let elsewhere = format!("{}/c/nix", platform.url());
    expect_not_judged(&elsewhere, &[], "there is no session at").await;
}

#[tokio::test]
async fn faults_of_keys_and_names_are_found() {
    let variants: &[(Fault, &[&str])] = &[
        (Fault::WrongKeyTaken, &["key.wrong", "key.before_body"]),
        (Fault::BilgiLocked, &["key.bilgi", "bilgi.answered"]),
        (Fault::KeyAfterBody, &["key.before_body"]),
        (Fault::SpacesInNames, &["isci.characters", "sonuc.isci"]),
        (Fault::LongNames, &["isci.length"]),
        (Fault::NamesNotDecoded, &["isci.percent_decoded"]),
        (Fault::NamesDecodedTwice, &["isci.decoded_once"]),
        (Fault::UnknownParametersRefused, &["query.unknown"]),
        (Fault::PlainTextErrors, &["errors.hata"]),
        (Fault::JsonCalledText, &["json.type"]),
        (Fault::MethodNotFound, &["errors.method"]),
    ];
    expect_exactly(with_key(), &[], variants).await;
}

#[tokio::test]
async fn faults_of_tasks_and_of_what_is_told_are_found() {
    let variants: &[(Fault, &[&str])] = &[
        (Fault::NoSeed, &["gorev.fields"]),
        (Fault::UpperCaseDigest, &["gorev.digest"]),
        (Fault::UnknownMode, &["gorev.mod"]),
        (Fault::ShardOutOfRange, &["gorev.ranges", "veri.served"]),
        (Fault::OtherShardEachTime, &["gorev.same"]),
        (Fault::SameShardForAll, &["gorev.spread"]),
        (Fault::NothingReceived, &["bilgi.gelen"]),
        (Fault::WrongLock, &["bilgi.kilitli"]),
        (Fault::NoModel, &["bilgi.fields"]),
        (Fault::OtherSteps, &["bilgi.agrees"]),
    ];
    expect_exactly(Settings::default(), &[], variants).await;
}

#[tokio::test]
async fn faults_of_weights_and_data_are_found() {
    let variants: &[(Fault, &[&str])] = &[
        (Fault::TaskDigest, &["agirlik.task"]),
        (Fault::DigestHeader, &["agirlik.sha256"]),
        (Fault::RoundHeader, &["agirlik.tur"]),
        (Fault::WeightsDrift, &["agirlik.within_round"]),
        (Fault::WeightsCalledText, &["agirlik.type"]),
        (Fault::NoRanges, &["agirlik.range"]),
        (Fault::DataDigestHeader, &["veri.sha256"]),
        (Fault::DataTaskDigest, &["veri.task_digest"]),
        (Fault::TokenCount, &["veri.belirtec"]),
        (Fault::WideIds, &["veri.ids"]),
        (Fault::ShortLabels, &["veri.etiket"]),
        (Fault::DataNotShown, &["veri.bilgi"]),
        (Fault::AnyShard, &["veri.out_of_range"]),
    ];
    expect_exactly(Settings::default(), &[], variants).await;
    let without_data = Settings {
        shards: None,
        ..Settings::default()
    };
    expect_exactly(without_data, &[], &[(Fault::NoDataIs400, &["veri.none"])]).await;
}

#[tokio::test]
async fn faults_of_taking_results_are_found() {
    let variants: &[(Fault, &[&str])] = &[
        (Fault::NotTaken, &["sonuc.accepted"]),
        (Fault::NeverWaits, &["sonuc.wait"]),
        (Fault::WaitWithoutRound, &["sonuc.wait"]),
        (Fault::SecondCounts, &["sonuc.counted_once", "sonuc.second"]),
        (Fault::SecondReplaces, &["sonuc.second"]),
        (Fault::RepeatRefused, &["sonuc.repeat", "sonuc.repeat_late"]),
        (Fault::LateTaken, &["sonuc.late"]),
        (Fault::EarlyTaken, &["sonuc.early"]),
        (Fault::RoundGuessed, &["sonuc.tur"]),
        (Fault::OneTry, &["sonuc.corrected"]),
        (Fault::ResultDigestIgnored, &["upload.sha256"]),
        (Fault::LargeRead, &["upload.too_large"]),
        (Fault::ChunkedTaken, &["upload.length"]),
        (Fault::CutCounts, &["upload.cut"]),
    ];
    expect_exactly(Settings::default(), &[], variants).await;
}

#[tokio::test]
async fn faults_of_validation_are_found() {
    let variants: &[(Fault, &[&str])] = &[
        (Fault::MissingKeysTaken, &["validate.missing_key"]),
        (Fault::ExtraKeysTaken, &["validate.extra_key"]),
        (Fault::ShapesTaken, &["validate.shape"]),
        (Fault::DtypesTaken, &["validate.dtype"]),
        (Fault::NanTaken, &["validate.nan"]),
        (Fault::InfinityTaken, &["validate.infinity"]),
        (Fault::TrailingTaken, &["validate.trailing"]),
        (Fault::TruncatedIs500, &["validate.truncated"]),
        (Fault::EmptyTaken, &["validate.empty"]),
        (Fault::InvalidIs422, &["validate.status"]),
        (Fault::KeyNotNamed, &["validate.names_key"]),
    ];
    expect_exactly(Settings::default(), &[], variants).await;
}

#[tokio::test]
async fn faults_of_rounds_are_found() {
    let variants: &[(Fault, &[&str])] = &[
        (Fault::NeverCloses, &["round.closes"]),
        (Fault::RoundNotRaised, &["round.closes"]),
        (Fault::RoundSkipped, &["round.next"]),
        (Fault::WeightsNotMerged, &["round.weights"]),
        (
            Fault::WeightsNotPublished,
            &["agirlik.task", "round.published"],
        ),
        (Fault::LayoutChanges, &["round.layout"]),
        (
            Fault::WeightsCut,
            &["agirlik.readable", "agirlik.safetensors"],
        ),
        (Fault::TornSwap, &["round.swap"]),
        (Fault::WrongWay, &["round.moves"]),
        (Fault::NoElimination, &["round.outlier"]),
    ];
    expect_exactly(Settings::default(), &[], variants).await;
    let impatient = Settings {
        round_timeout: Some(Duration::from_millis(500)),
        ..Settings::default()
    };
    let variants: &[(Fault, &[&str])] = &[(Fault::NoTimeout, &[OF_TIMEOUTS])];
    expect_exactly(impatient, &["--wait-seconds", "2"], variants).await;
}

#[tokio::test]
async fn faults_of_the_end_are_found() {
    let settings = Settings {
        total_rounds: 40,
        ..Settings::default()
    };
    let variants: &[(Fault, &[&str])] = &[
        (Fault::NeverFinished, &["end.bitti"]),
        (Fault::TakenAfterEnd, &["end.refuses"]),
    ];
    expect_exactly(settings, &["--to-the-end"], variants).await;
}
