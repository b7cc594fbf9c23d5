INSERT INTO leasehold.layout (version) VALUES (1)
ON CONFLICT (only_row) DO UPDATE SET version = excluded.version;
