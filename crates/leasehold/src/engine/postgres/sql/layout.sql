INSERT INTO leasehold.layout (version) VALUES (2)
ON CONFLICT (only_row) DO UPDATE SET version = excluded.version;
