-- With secure aggregation: the round in which shares were asked for last. There is no second sum of it, whatever becomes of the first.

ALTER TABLE federated_sessions ADD COLUMN revealed_round BIGINT;
