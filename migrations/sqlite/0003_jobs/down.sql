DROP TABLE job_logs;
DROP TABLE metric_points;
DROP TABLE artifacts;
DROP TABLE checkpoints;
DROP TABLE job_attempts;
DROP TABLE job_events;
DROP TABLE jobs;
