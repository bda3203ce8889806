//! `trainyard-worker volunteer`: trains for a coordinator, within what the machine's owner allows; and the switch that
//! pauses it.

mod show;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use tokio::sync::mpsc::unbounded_channel;
use trainyard_privacy::GaussianMechanism;
use trainyard_shared::Secret;

use super::error::CliError;
use super::output::Output;
use super::signals::asked_to_end;
use crate::config::{FormatArgs, ModelArgs, seconds, secret};
use crate::engine::device::set_threads;
use crate::tasks::{StopReason, StopSignal};
use crate::volunteer::{
    self, CoordinatorAddress, CpuShare, DiskLimits, Hours, Limits, OwnData, OwnPart, PauseSwitch,
    VolunteerConfig, VolunteerError, is_name,
};
use show::Show;

/// Options of `volunteer`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Options {
    #[command(subcommand)]
    switch: Option<Switch>,
    /// Address of the coordinator: https, or http to 127.0.0.1 alone
    #[arg(long, value_name = "URL", required = true)]
    koordinator: Option<String>,
    /// Your name there: a pseudonym, without personal data; most coordinators, ours among them, take 1 to 60 of the
    /// characters a-z, A-Z, 0-9, _, . and -
    #[arg(long, value_name = "NAME", required = true, value_parser = name)]
    isci: Option<String>,
    /// The coordinator's shared key, where it has one
    #[arg(long, env = "ANAHTAR", hide_env_values = true, value_name = "KEY", value_parser = secret)]
    anahtar: Option<Secret>,
    /// Your own data, for coordinators that serve none: a token shard, or rows in any form that training takes
    #[arg(long, value_name = "FILE")]
    veri: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArgs,
    /// All volunteers have the same --veri file: train on your part of it only
    #[arg(long, requires = "veri")]
    veri_shared: bool,
    /// The base model (a folder, a .gguf file or a hub name), where the coordinator does not name one
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// The adapter's alpha, where the coordinator does not say [default: twice its rank]
    #[arg(long, value_name = "ALPHA")]
    lora_alpha: Option<f64>,
    /// Go on with the optimizer's moments from round to round, rather than from zero
    #[arg(long)]
    keep_optimizer: bool,
    /// Differential privacy: scale the change of every round down to this L2 norm and add noise before it is sent
    #[arg(long, value_name = "NORM", requires = "noise_multiplier")]
    clip_norm: Option<f64>,
    /// Differential privacy: standard deviation of that noise, in multiples of --clip-norm
    #[arg(long, value_name = "FACTOR", requires = "clip_norm")]
    noise_multiplier: Option<f64>,
    /// Train within these hours only, as 22-6 or 22:30-6:15,12-13 (this machine's time)
    #[arg(long, value_name = "HOURS")]
    hours: Option<Hours>,
    /// Compute for this part of the time only, from 0.01 to 1
    #[arg(long, value_name = "SHARE", default_value = "1")]
    cpu_share: CpuShare,
    /// Train only while nobody else uses the machine: its processor, terminals, built-in and USB keyboards and mice
    /// (not seen: Bluetooth keyboards, remote desktops)
    #[arg(long)]
    only_when_idle: bool,
    /// Bytes of the disk that stay free; with less nothing more is fetched or trained
    #[arg(long, value_name = "BYTES", default_value_t = DiskLimits::default().keep_free_bytes)]
    keep_free_bytes: u64,
    /// The longest file of weights that is fetched
    #[arg(long, value_name = "BYTES", default_value_t = DiskLimits::default().max_weights_bytes)]
    max_weights_bytes: u64,
    /// The longest shard that is fetched
    #[arg(long, value_name = "BYTES", default_value_t = DiskLimits::default().max_shard_bytes)]
    max_shard_bytes: u64,
    /// Threads that compute [default: as many as there are physical cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Seconds before the coordinator is asked again; doubles up to 60
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    retry_delay: Duration,
    #[command(flatten)]
    models: ModelArgs,
}

#[derive(Subcommand)]
enum Switch {
    /// Pause all volunteers of this STATE_DIR, also those that are started later
    Pause(SwitchOptions),
    /// Let them go on
    Resume(SwitchOptions),
}

#[derive(Args)]
struct SwitchOptions {
    #[command(flatten)]
    models: ModelArgs,
}

/// How often is asked, while a round is trained, whether it is still open.
const WATCH_EVERY: Duration = Duration::from_secs(60);
/// Where the doubling of the delay ends.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// Volunteers until the coordinator is done, or turns the switch.
pub fn run(options: Options, output: &Output) -> Result<(), CliError> {
    match &options.switch {
        None => {}
        Some(Switch::Pause(of)) => {
            let switch = PauseSwitch::of(&of.models.state_dir()?);
            let turned = switch.pause();
            return told(&switch, turned, "paused", output);
        }
        Some(Switch::Resume(of)) => {
            let switch = PauseSwitch::of(&of.models.state_dir()?);
            let turned = switch.resume();
            return told(&switch, turned, "resumed", output);
        }
    }
    if let Some(threads) = options.threads {
        set_threads(threads.into())?;
    }
    let config = options.into_config()?;
    let stop = StopSignal::default();
    let (sender, mut events) = unbounded_channel();
    let mut show = Show::new(output);
    let result = actix_rt::System::new().block_on(async {
        let asked = stop.clone();
        actix_rt::spawn(async move {
            asked_to_end().await;
            asked.stop(StopReason::Requested);
        });
        actix_rt::spawn(turned_by_signal(config.limits.pause.clone()));
        let showing = async {
            while let Some(event) = events.recv().await {
                show.event(&event);
            }
        };
        let (result, ()) = tokio::join!(volunteer::run(&config, &stop, sender), showing);
        result
    });
    show.finish()?;
    Ok(result?)
}

fn told(
    switch: &PauseSwitch,
    turned: std::io::Result<()>,
    what: &str,
    output: &Output,
) -> Result<(), CliError> {
    turned.map_err(|source| CliError::io(format!("cannot turn the switch {switch}"), source))?;
    output.result(&json!({"event": what}), what)
}

impl Options {
    fn into_config(self) -> Result<VolunteerConfig, CliError> {
        // The command line is not taken without both of them.
        let missing = || CliError::Input("--koordinator and --isci are needed".to_owned());
        let state_dir = self.models.state_dir()?;
        let data = self.veri.as_deref().map(|path| OwnData {
            file: self.format.data_file(path),
            part: match self.veri_shared {
                true => OwnPart::ByTask,
                false => OwnPart::Whole,
            },
        });
        let mechanism = self
            .clip_norm
            .zip(self.noise_multiplier)
            .map(|(clip_norm, multiplier)| GaussianMechanism::new(clip_norm, multiplier))
            .transpose()
            .map_err(|error| CliError::Input(error.to_string()))?;
        Ok(VolunteerConfig {
            coordinator: address(&self.koordinator.ok_or_else(missing)?)?,
            name: self.isci.ok_or_else(missing)?,
            key: self.anahtar.filter(|key| !key.expose().is_empty()),
            data,
            model: self.model,
            lora_alpha: self.lora_alpha,
            keep_optimizer: self.keep_optimizer,
            mechanism,
            limits: Limits {
                hours: self.hours,
                cpu_share: self.cpu_share,
                only_when_idle: self.only_when_idle,
                pause: PauseSwitch::of(&state_dir),
                disk: DiskLimits {
                    keep_free_bytes: self.keep_free_bytes,
                    max_weights_bytes: self.max_weights_bytes,
                    max_shard_bytes: self.max_shard_bytes,
                },
            },
            models: self.models.model_settings()?,
            state_dir,
            first_delay: self.retry_delay,
            longest_delay: LONGEST_DELAY.max(self.retry_delay),
            watch_every: WATCH_EVERY,
        })
    }
}

/// Not left to the parser of arguments, which would show what it refuses: an address may have a password in it.
fn address(text: &str) -> Result<CoordinatorAddress, VolunteerError> {
    text.parse()
        .map_err(|error| VolunteerError::Arguments(format!("--koordinator: {error}")))
}

fn name(text: &str) -> Result<String, String> {
    match is_name(text) {
        true => Ok(text.to_owned()),
        false => Err("1 to 200 characters are expected, none of them a control character".into()),
    }
}

/// Turns the switch at every SIGUSR1.
#[cfg(unix)]
async fn turned_by_signal(switch: PauseSwitch) {
    use tokio::signal::unix::{SignalKind, signal};
    let mut signals = match signal(SignalKind::user_defined1()) {
        Ok(signals) => signals,
        Err(error) => {
            tracing::warn!(%error, "SIGUSR1 cannot be waited for");
            return;
        }
    };
    while signals.recv().await.is_some() {
        if let Err(error) = switch.toggle() {
            tracing::warn!(%error, file = %switch, "the pause switch cannot be turned");
        }
    }
}

#[cfg(not(unix))]
async fn turned_by_signal(_: PauseSwitch) {}
