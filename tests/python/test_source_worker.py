"""The protocol as a worker and a dashboard of another make see it, written from the source documents alone."""

import pytest
from conftest import SourceWorker, fetch, submit_job
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

# The examples' figures, so that what the pages show is what is sent.
PROGRESS = {
    "epoch": 2, "step": 1500, "total_steps": 3000, "loss": 0.3421, "learning_rate": 0.000018, "grad_norm": 1.24,
    "throughput": 42.5, "perplexity": 1.41, "token_throughput": 64000, "loss_ema": 0.35, "gpu_utilization": 98,
    "gpu_memory_used": 71.3, "cpu_utilization": 15.0, "ram_used": 8.2, "eta_seconds": 3600,
}


def test_source_worker_takes_a_job_from_enrolment_to_completion_while_a_dashboard_follows(start_platform):
    platform = start_platform(WORKER_HEARTBEAT_TIMEOUT="60")
    admin = platform.admin()
    dashboard = platform.dashboard_channel(admin)

    worker = SourceWorker(platform, admin)
    assert worker.enrolled["api_key"].startswith("wkr_")
    assert isinstance(worker.enrolled["worker_id"], int)
    assert worker.enrolled["worker_name"]
    assert worker.authenticated["status"] == "ok"
    assert worker.authenticated["worker_id"] == worker.uuid
    worker.register()
    worker.heartbeat()

    job_id, dataset_id = submit_job(admin)
    dashboard.send({"type": "subscribe_job", "job_id": job_id})
    start = worker.channel.receive("start_training")
    assert start["job_id"] == job_id
    data = start["data"]
    assert data["dataset"]["id"] == dataset_id
    assert data["dataset"]["format"] == "jsonl"
    assert data["dataset"]["storage_path"] == f"datasets/{dataset_id}/data.jsonl"
    assert data["base_model"]["huggingface_id"] == "meta-llama/Llama-3.1-8B"
    assert data["output_path"] == f"models/job-{job_id}/"
    for field, value in {"epochs": 3, "batch_size": 4, "learning_rate": 0.0002, "max_length": 1024,
                         "mixed_precision": "bf16", "use_peft": True, "lora_r": 16, "save_steps": 500,
                         "logging_steps": 10}.items():
        assert data["config"][field] == value, field
    assert len(fetch(data["dataset"]["download_url"]).splitlines()) == 2

    worker.about("job_started", job_id, total_steps=3000)
    worker.about("training_progress", job_id, **PROGRESS)
    while True:
        update = dashboard.receive("job_update", job_id=job_id)["data"]
        if update.get("step") == 1500:
            break
    assert update["status"] == "running"
    for field in ("epoch", "loss", "learning_rate", "gpu_utilization"):
        assert update[field] == PROGRESS[field], field

    worker.send("worker_metrics", data={
        "gpu_utilization": 85.5, "gpu_memory_used": 18.2, "gpu_memory_total": 24.0, "cpu_utilization": 22.3,
        "ram_used": 8.5, "ram_total": 64.0, "status": "training", "status_message": "Epoch 2/3, step 1500/3000"})
    while True:
        shown = dashboard.receive("worker_update", worker_id=worker.uuid)["data"]
        if shown.get("gpu_utilization") == 85.5:
            break
    assert shown["gpu_memory_used"] == 18.2
    assert shown["gpu_memory_total"] == 24.0
    assert shown["cpu_utilization"] == 22.3
    assert shown["current_job_id"] == job_id

    worker.about("checkpoint_saved", job_id, step=1000, epoch=1, path=f"checkpoints/job-{job_id}/step-1000/",
                 metrics={"loss": 0.4521, "eval_loss": 0.5012})
    worker.about("job_completed", job_id, final_loss=0.1823, total_steps=3000, training_time_seconds=7200,
                 s3_prefix=f"models/job-{job_id}/final/")
    job = admin.wait_for(f"/api/jobs/{job_id}", lambda job: job["status"] == "completed")
    assert job["failure_kind"] is None
    checkpoints = admin.get(f"/api/jobs/{job_id}/checkpoints")["items"]
    assert [(c["step"], c["verified"]) for c in checkpoints] == [(1000, False)]
    assert checkpoints[0]["path"] == f"checkpoints/job-{job_id}/step-1000/"
    while dashboard.receive("job_update", job_id=job_id)["data"]["status"] != "completed":
        pass

    # The same worker is free again, without reconnecting.
    worker.heartbeat()
    next_id, _ = submit_job(admin)
    assert worker.channel.receive("start_training")["job_id"] == next_id


def test_failure_told_by_a_source_worker_reaches_the_dashboard_with_the_step_of_its_last_checkpoint(start_platform):
    platform = start_platform(WORKER_HEARTBEAT_TIMEOUT="60")
    admin = platform.admin()
    dashboard = platform.dashboard_channel(admin)
    worker = SourceWorker(platform, admin)
    worker.register()
    job_id, _ = submit_job(admin)
    dashboard.send({"type": "subscribe_job", "job_id": job_id})
    worker.channel.receive("start_training")
    worker.about("job_started", job_id)
    worker.about("job_failed", job_id, error="CUDA out of memory. Tried to allocate 2.5 GB...", step=450,
                 last_checkpoint=f"checkpoints/job-{job_id}/step-400/")
    failed = dashboard.receive("training_failed", job_id=job_id)["data"]
    assert failed["error"] == "CUDA out of memory. Tried to allocate 2.5 GB..."
    assert failed["last_checkpoint_step"] == 400
    assert admin.get(f"/api/jobs/{job_id}")["failure_kind"] == "out_of_memory"


def test_stop_reaches_a_source_worker_and_its_completion_ends_the_job_as_stopped(start_platform):
    platform = start_platform(WORKER_HEARTBEAT_TIMEOUT="60")
    admin = platform.admin()
    worker = SourceWorker(platform, admin)
    worker.register()
    job_id, _ = submit_job(admin)
    worker.channel.receive("start_training")
    worker.about("job_started", job_id)
    admin.wait_for(f"/api/jobs/{job_id}", lambda job: job["status"] == "running")
    admin.post(f"/api/jobs/{job_id}/stop", {})
    assert worker.channel.receive("stop_training")["job_id"] == job_id
    worker.about("job_completed", job_id, final_loss=0.5, total_steps=10, training_time_seconds=1,
                 s3_prefix=f"models/job-{job_id}/final/")
    admin.wait_for(f"/api/jobs/{job_id}", lambda job: job["status"] == "stopped")


def test_silent_worker_is_pinged_then_offline_and_its_job_failed(start_platform):
    platform = start_platform(WORKER_HEARTBEAT_TIMEOUT="1")
    admin = platform.admin()
    dashboard = platform.dashboard_channel(admin)
    worker = SourceWorker(platform, admin)
    worker.register()
    job_id, _ = submit_job(admin)
    worker.channel.receive("start_training")
    worker.about("job_started", job_id)

    # Answered in time, the double-check leaves the worker online.
    worker.channel.receive("ping")
    worker.send("pong", worker_id=worker.uuid, status="training", busy=True, current_job_id=job_id)
    worker.channel.receive("ping")
    assert admin.get(f"/api/jobs/{job_id}")["status"] == "running"

    # Not answered, it ends in a lost worker.
    failed = dashboard.receive("training_failed", job_id=job_id)["data"]
    assert failed["error"] == "Worker disconnected during training"
    assert failed["last_checkpoint_step"] is None
    admin.wait_for(f"/api/workers/{worker.enrolled['worker_id']}", lambda shown: shown["status"] == "offline")


def test_worker_returns_with_its_own_key_and_a_wrong_key_is_told_so(start_platform):
    platform = start_platform(WORKER_HEARTBEAT_TIMEOUT="60")
    admin = platform.admin()
    worker = SourceWorker(platform, admin)
    worker.register()
    worker.channel.close()

    again = platform.worker_channel(worker.uuid)
    again.send({"type": "authenticate", "api_key": worker.enrolled["api_key"], "worker_uuid": worker.uuid})
    assert again.receive("authenticated")["worker_id"] == worker.uuid

    wrong = platform.worker_channel(worker.uuid)
    wrong.send({"type": "authenticate", "api_key": "wkr_" + "x" * 43, "worker_uuid": worker.uuid})
    assert isinstance(wrong.receive("auth_failed")["reason"], str)
    with pytest.raises(ConnectionClosed) as closed:
        wrong.ws.recv(timeout=10)
    assert closed.value.rcvd.code == 4401
    again.send({"type": "no_such_type"})
    assert again.receive("error")["code"] == "unknown_type"


def test_dashboard_token_is_good_once(start_platform):
    platform = start_platform()
    admin = platform.admin()
    token = admin.post("/api/ws-token", {})
    url = f"ws://{platform.address}/ws/user/{token['user_id']}?token={token['token']}"
    with connect(url, proxy=None):
        pass
    with pytest.raises(InvalidStatus) as refused:
        connect(url, proxy=None)
    assert refused.value.response.status_code == 401
