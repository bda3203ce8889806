DROP TABLE datasets;
