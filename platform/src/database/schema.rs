//! The tables, as the migrations of both dialects make them. Times are UTC.

#![allow(missing_docs)] // columns are described in migrations/

diesel::table! {
    users (id) {
        id -> BigInt,
        email -> Text,
        password_hash -> Text,
        role -> Text,
        max_concurrent_jobs -> Nullable<BigInt>,
        max_storage_bytes -> Nullable<BigInt>,
        created_at -> Timestamp,
        deleted_at -> Nullable<Timestamp>,
    }
}

diesel::table! {
    sessions (id) {
        id -> BigInt,
        user_id -> BigInt,
        token_hash -> Binary,
        created_at -> Timestamp,
        expires_at -> Timestamp,
    }
}

diesel::table! {
    api_tokens (id) {
        id -> BigInt,
        user_id -> BigInt,
        name -> Text,
        role -> Text,
        token_hash -> Binary,
        created_at -> Timestamp,
        expires_at -> Nullable<Timestamp>,
    }
}

diesel::table! {
    ws_tokens (token_hash) {
        token_hash -> Binary,
        user_id -> BigInt,
        session_id -> Nullable<BigInt>,
        api_token_id -> Nullable<BigInt>,
        expires_at -> Timestamp,
    }
}

diesel::table! {
    enrollment_keys (id) {
        id -> BigInt,
        key_hash -> Binary,
        name_prefix -> Nullable<Text>,
        max_uses -> Nullable<BigInt>,
        uses -> BigInt,
        created_by -> BigInt,
        created_at -> Timestamp,
        expires_at -> Timestamp,
        revoked_at -> Nullable<Timestamp>,
    }
}

diesel::table! {
    workers (id) {
        id -> BigInt,
        uuid -> Text,
        name -> Text,
        key_hash -> Binary,
        key_used_at -> Nullable<Timestamp>,
        enrollment_key_id -> Nullable<BigInt>,
        worker_type -> Nullable<Text>,
        hardware -> Nullable<Text>,
        benchmark -> Nullable<Text>,
        draining -> Bool,
        created_at -> Timestamp,
        last_seen_at -> Nullable<Timestamp>,
        deleted_at -> Nullable<Timestamp>,
    }
}

diesel::table! {
    datasets (id) {
        id -> BigInt,
        owner_id -> BigInt,
        name -> Text,
        format -> Text,
        storage_key -> Text,
        state -> Text,
        bytes -> BigInt,
        sha256 -> Text,
        row_count -> BigInt,
        untrainable_rows -> BigInt,
        bad_rows -> BigInt,
        row_shapes -> Text,
        problems -> Text,
        created_at -> Timestamp,
    }
}

diesel::table! {
    jobs (id) {
        id -> BigInt,
        owner_id -> BigInt,
        name -> Text,
        dataset_id -> BigInt,
        base_model -> Text,
        config -> Text,
        priority -> Integer,
        max_retries -> Integer,
        requested_worker_id -> Nullable<BigInt>,
        status -> Text,
        attempt -> Integer,
        retries_left -> Integer,
        worker_id -> Nullable<BigInt>,
        resume_from -> Nullable<BigInt>,
        failure_kind -> Nullable<Text>,
        error -> Nullable<Text>,
        started -> Nullable<Text>,
        progress -> Nullable<Text>,
        result -> Nullable<Text>,
        revision -> BigInt,
        created_at -> Timestamp,
        started_at -> Nullable<Timestamp>,
        ended_at -> Nullable<Timestamp>,
    }
}

diesel::table! {
    job_events (id) {
        id -> BigInt,
        job_id -> BigInt,
        attempt -> Integer,
        at -> Timestamp,
        kind -> Text,
        from_status -> Text,
        to_status -> Text,
        detail -> Text,
    }
}

diesel::table! {
    job_attempts (job_id, attempt) {
        job_id -> BigInt,
        attempt -> Integer,
        worker_id -> BigInt,
    }
}

diesel::table! {
    checkpoints (id) {
        id -> BigInt,
        job_id -> BigInt,
        attempt -> Integer,
        step -> BigInt,
        epoch -> Nullable<BigInt>,
        path -> Text,
        metrics -> Text,
        verified -> Bool,
        created_at -> Timestamp,
    }
}

diesel::table! {
    artifacts (id) {
        id -> BigInt,
        job_id -> BigInt,
        attempt -> Integer,
        step -> Nullable<BigInt>,
        storage_key -> Text,
        size_bytes -> BigInt,
        sha256 -> Text,
        created_at -> Timestamp,
    }
}

diesel::table! {
    metric_points (job_id, step) {
        job_id -> BigInt,
        step -> BigInt,
        attempt -> Integer,
        data -> Text,
    }
}

diesel::table! {
    job_logs (id) {
        id -> BigInt,
        job_id -> BigInt,
        attempt -> Integer,
        at -> Timestamp,
        level -> Text,
        line -> Text,
    }
}

diesel::table! {
    evaluations (id) {
        id -> BigInt,
        owner_id -> BigInt,
        job_id -> Nullable<BigInt>,
        model -> Text,
        base_model -> Text,
        dataset_id -> BigInt,
        metrics -> Text,
        batch_size -> Nullable<BigInt>,
        max_length -> Nullable<BigInt>,
        status -> Text,
        worker_id -> Nullable<BigInt>,
        result -> Nullable<Text>,
        failure_kind -> Nullable<Text>,
        error -> Nullable<Text>,
        created_at -> Timestamp,
        started_at -> Nullable<Timestamp>,
        ended_at -> Nullable<Timestamp>,
    }
}

diesel::table! {
    exports (id) {
        id -> BigInt,
        owner_id -> BigInt,
        job_id -> BigInt,
        format -> Text,
        weights -> Nullable<Text>,
        status -> Text,
        worker_id -> Nullable<BigInt>,
        result -> Nullable<Text>,
        failure_kind -> Nullable<Text>,
        error -> Nullable<Text>,
        created_at -> Timestamp,
        started_at -> Nullable<Timestamp>,
        ended_at -> Nullable<Timestamp>,
    }
}

diesel::table! {
    federated_sessions (id) {
        id -> BigInt,
        owner_id -> BigInt,
        kind -> Text,
        name -> Text,
        is_default -> Bool,
        status -> Text,
        error -> Nullable<Text>,
        base_model -> Text,
        job_id -> Nullable<BigInt>,
        dataset_id -> Nullable<BigInt>,
        settings -> Text,
        adapter_config -> Nullable<Text>,
        shard_count -> BigInt,
        total_rounds -> BigInt,
        enough -> BigInt,
        at_least -> BigInt,
        round_timeout_ms -> Nullable<BigInt>,
        aggregation -> Text,
        outer_lr -> Double,
        outer_momentum -> Double,
        max_delta_norm -> Nullable<Double>,
        max_refused -> Nullable<BigInt>,
        key_hash -> Nullable<Binary>,
        round -> BigInt,
        closing -> Bool,
        worker_times -> Nullable<Text>,
        revealed_round -> Nullable<BigInt>,
        created_at -> Timestamp,
        ended_at -> Nullable<Timestamp>,
    }
}

diesel::table! {
    federated_rounds (session_id, round) {
        session_id -> BigInt,
        round -> BigInt,
        weights_sha256 -> Text,
        weights_bytes -> BigInt,
        has_velocity -> Bool,
        merged -> Nullable<BigInt>,
        update_norm -> Nullable<Double>,
        loss -> Nullable<Double>,
        opened_at -> Timestamp,
        closed_at -> Nullable<Timestamp>,
    }
}

diesel::table! {
    federated_participants (session_id, name) {
        session_id -> BigInt,
        name -> Text,
        shard -> BigInt,
        accepted -> BigInt,
        refused -> BigInt,
        eliminated -> BigInt,
        late -> BigInt,
        takes_part -> Bool,
        failures -> BigInt,
        last_error -> Nullable<Text>,
        joined_at -> Timestamp,
    }
}

diesel::table! {
    federated_results (session_id, round, participant) {
        session_id -> BigInt,
        round -> BigInt,
        participant -> Text,
        number -> BigInt,
        sha256 -> Text,
        size_bytes -> BigInt,
        delta_norm -> Double,
        weight -> BigInt,
        loss -> Nullable<Double>,
        eliminated_because -> Nullable<Text>,
        accepted_at -> Timestamp,
    }
}

diesel::table! {
    federated_shards (session_id, shard) {
        session_id -> BigInt,
        shard -> BigInt,
        sha256 -> Text,
        size_bytes -> BigInt,
        tokens -> BigInt,
    }
}

diesel::table! {
    federated_files (session_id, name) {
        session_id -> BigInt,
        name -> Text,
        sha256 -> Text,
        size_bytes -> BigInt,
    }
}

diesel::joinable!(sessions -> users (user_id));
diesel::joinable!(api_tokens -> users (user_id));
diesel::allow_tables_to_appear_in_same_query!(users, sessions, api_tokens);
