DROP TABLE federated_files;
DROP TABLE federated_shards;
DROP TABLE federated_results;
DROP TABLE federated_participants;
DROP TABLE federated_rounds;
DROP TABLE federated_sessions;
