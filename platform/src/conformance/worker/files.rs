//! The files of the played platform: the data set that jobs train on, and what the worker stores.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use actix_web::{App, HttpResponse, HttpServer, web};
use bytes::Bytes;
use serde_json::{Value, json};

use super::story::{Event, Recorder};

/// The data set of jobs.
pub const ROWS: &str = "rows.jsonl";
/// A data set that is not there.
pub const MISSING: &str = "missing.jsonl";

/// Largest file that is taken.
const MAX_FILE_BYTES: usize = 512 * 1024 * 1024;
/// Chats in the data set.
const CHATS: usize = 16;

/// Files in memory.
#[derive(Clone)]
pub struct Files {
    base: String,
    story: Recorder,
    stored: Arc<Mutex<HashMap<String, Bytes>>>,
}

impl Files {
    /// Only the data set is there.
    pub fn new(base: String, story: Recorder) -> Self {
        let rows = (0..CHATS).map(|i| {
            let question = json!({"role": "user", "content": format!("load car {}", i % 7)});
            let answer = json!({"role": "assistant", "content": "aye aye"});
            format!("{}\n", json!({"messages": [question, answer]}))
        });
        let rows = Bytes::from(rows.collect::<String>());
        Self {
            base,
            story,
            stored: Arc::new(Mutex::new(HashMap::from([(ROWS.to_owned(), rows)]))),
        }
    }

    /// The address of a file, there or not.
    pub fn url(&self, key: &str) -> String {
        format!("{}/files/{key}", self.base)
    }

    /// The keys under which the worker stored something.
    pub fn stored(&self) -> Vec<String> {
        let stored = self.stored.lock().expect("no holder panics");
        stored.keys().filter(|key| *key != ROWS).cloned().collect()
    }
}

/// Serves the files on a free port of this machine.
///
/// # Errors
/// No port can be bound.
pub fn serve(files: Files) -> std::io::Result<SocketAddr> {
    let server = HttpServer::new(move || {
        App::new()
            .app_data(web::Data::new(files.clone()))
            .app_data(web::PayloadConfig::new(MAX_FILE_BYTES))
            .route("/api/worker/uploads", web::post().to(grant))
            .route("/files/{key:.*}", web::get().to(fetch))
            .route("/files/{key:.*}", web::put().to(store))
    })
    .workers(1)
    .disable_signals()
    .bind(("127.0.0.1", 0))?;
    let address = server.addrs()[0];
    actix_web::rt::spawn(server.run());
    Ok(address)
}

async fn fetch(files: web::Data<Files>, key: web::Path<String>) -> HttpResponse {
    files.story.note(Event::Fetched(key.to_string()));
    let found = files
        .stored
        .lock()
        .expect("no holder panics")
        .get(&*key)
        .cloned();
    match found {
        Some(bytes) => HttpResponse::Ok().body(bytes),
        None => HttpResponse::NotFound().finish(),
    }
}

async fn store(files: web::Data<Files>, key: web::Path<String>, body: Bytes) -> HttpResponse {
    let key = key.into_inner();
    files.story.note(Event::Stored(key.clone()));
    files
        .stored
        .lock()
        .expect("no holder panics")
        .insert(key, body);
    HttpResponse::Created().finish()
}

/// Where a file may be put: our platform's answer, for workers that ask for one.
async fn grant(files: web::Data<Files>, request: web::Json<Value>) -> HttpResponse {
    match request["key"].as_str() {
        Some(key) => HttpResponse::Ok().json(json!({
            "url": files.url(key), "headers": {}, "expires_in": 3600
        })),
        None => HttpResponse::BadRequest().finish(),
    }
}
