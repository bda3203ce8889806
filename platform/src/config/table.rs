//! The table of settings: what `trainyard config` prints and the documentation lists.

/// One setting, without its value.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Name in the environment; in lower case in the TOML file; with dashes as a flag.
    pub name: &'static str,
    /// Default as it would be written; empty where there is none.
    pub default: &'static str,
    /// Unit of the value; empty for text.
    pub unit: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// Whether the value is never shown.
    pub is_secret: bool,
}

const fn setting(
    name: &'static str,
    default: &'static str,
    unit: &'static str,
    about: &'static str,
) -> Setting {
    Setting {
        name,
        default,
        unit,
        about,
        is_secret: false,
    }
}

const fn secret(name: &'static str, about: &'static str) -> Setting {
    Setting {
        name,
        default: "",
        unit: "",
        about,
        is_secret: true,
    }
}

/// Every setting of the platform.
pub const SETTINGS: &[Setting] = &[
    setting(
        "BIND",
        "127.0.0.1:8080",
        "",
        "address to listen on; port 0 takes a free one",
    ),
    setting(
        "PUBLIC_URL",
        "",
        "",
        "http(s) address under which workers and people reach the platform; default: BIND",
    ),
    setting(
        "DATA_DIR",
        "./data",
        "",
        "folder in which everything is kept",
    ),
    setting(
        "DATABASE_URL",
        "",
        "",
        "sqlite:PATH; default: trainyard.db in DATA_DIR",
    ),
    setting(
        "STORAGE_URL",
        "",
        "",
        "file:PATH; default: storage in DATA_DIR",
    ),
    setting(
        "MODELS_DIR",
        "",
        "",
        "folder of base models, of which config and tokenizer are enough; default: models in DATA_DIR",
    ),
    secret("HF_TOKEN", "access token of the Hugging Face hub"),
    setting(
        "HF_ENDPOINT",
        "https://huggingface.co",
        "",
        "address of the Hugging Face hub or of a mirror",
    ),
    setting("HF_HUB_OFFLINE", "false", "", "never ask the hub"),
    setting("NATS_URL", "", "", "not supported by this version"),
    secret(
        "SECRET_KEY",
        "signs URLs, at least 32 characters; default: made once and kept in DATA_DIR",
    ),
    setting(
        "ADMIN_EMAIL",
        "admin@localhost",
        "",
        "e-mail of the administrator made at the first start",
    ),
    secret(
        "ADMIN_PASSWORD",
        "password of that administrator; default: a random one, printed once",
    ),
    setting(
        "HEARTBEAT_INTERVAL",
        "30",
        "seconds",
        "how often workers are expected to send a heartbeat",
    ),
    setting(
        "WORKER_HEARTBEAT_TIMEOUT",
        "90",
        "seconds",
        "silence after which a worker is pinged, then given up",
    ),
    setting(
        "WORKER_CHECK_INTERVAL",
        "60",
        "seconds",
        "how often all workers are looked at",
    ),
    setting(
        "WORKER_PING_GRACE",
        "10",
        "seconds",
        "how long that ping may go unanswered",
    ),
    setting(
        "JOB_START_TIMEOUT",
        "600",
        "seconds",
        "how long an assigned job may take to start",
    ),
    setting(
        "STOP_GRACE",
        "120",
        "seconds",
        "how long a stopping job may take to stop",
    ),
    setting(
        "INFERENCE_QUEUE_TIMEOUT",
        "60",
        "seconds",
        "how long an inference request may wait for a worker",
    ),
    setting(
        "INFERENCE_TIMEOUT",
        "600",
        "seconds",
        "how long a worker may be silent about an inference request",
    ),
    setting(
        "RESULT_UPLOAD_GRACE",
        "30",
        "seconds",
        "how far a volunteer's upload may lag behind 4 KiB a second",
    ),
    setting(
        "MAX_FRAME_BYTES",
        "1048576",
        "bytes",
        "largest text frame on a WebSocket",
    ),
    setting(
        "MAX_UPLOAD_BYTES",
        "10737418240",
        "bytes",
        "largest uploaded file",
    ),
    setting(
        "LOG",
        "info",
        "",
        "level (error, warn, info, debug, trace) or tracing directives",
    ),
    setting("LOG_FORMAT", "text", "", "text or json"),
    setting(
        "TLS_CERT",
        "",
        "",
        "PEM file of the certificate (and those above it): https and wss without a proxy",
    ),
    setting(
        "TLS_KEY",
        "",
        "",
        "PEM file of its private key, readable by the platform only",
    ),
    setting(
        "TRUST_PROXY",
        "false",
        "",
        "true: a proxy in front adds TLS and X-Forwarded-For",
    ),
];
