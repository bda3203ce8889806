DROP TABLE workers;
DROP TABLE enrollment_keys;
DROP TABLE ws_tokens;
DROP TABLE api_tokens;
DROP TABLE sessions;
DROP TABLE users;
