-- Writes a guarded record unless a higher token has written before, or the record is guarded by another lock.
CREATE OR REPLACE FUNCTION leasehold.write_fenced(
  p_key text, p_value bytea, p_token bigint, p_lock text,
  OUT outcome text, OUT version bigint, OUT token bigint, OUT lock text
)
LANGUAGE plpgsql AS $$
DECLARE
  v_set text := leasehold.durably();
BEGIN
  INSERT INTO leasehold.records AS r VALUES (p_key, p_value, 1, p_token, p_lock)
  ON CONFLICT (key) DO UPDATE
  SET value = excluded.value, version = r.version + 1, token = excluded.token, lock = coalesce(excluded.lock, r.lock)
  WHERE r.token <= excluded.token AND (r.lock IS NULL OR excluded.lock IS NULL OR r.lock = excluded.lock)
  RETURNING r.version INTO version;
  IF FOUND THEN
    outcome := 'written';
    RETURN;
  END IF;
  SELECT r.token, r.lock INTO token, lock FROM leasehold.records r WHERE r.key = p_key;
  outcome := CASE WHEN lock <> p_lock THEN 'other lock' ELSE 'refused' END;
END
$$;

-- Writes a guarded record if it is still of this version; for none, if there is no record.
CREATE OR REPLACE FUNCTION leasehold.write_if(
  p_key text, p_value bytea, p_version bigint, OUT outcome text, OUT version bigint
)
LANGUAGE plpgsql AS $$
DECLARE
  v_set text := leasehold.durably();
BEGIN
  IF p_version IS NULL THEN
    INSERT INTO leasehold.records AS r VALUES (p_key, p_value, 1, 0, NULL)
    ON CONFLICT (key) DO NOTHING RETURNING r.version INTO version;
  ELSE
    UPDATE leasehold.records r SET value = p_value, version = r.version + 1
    WHERE r.key = p_key AND r.version = p_version RETURNING r.version INTO version;
  END IF;
  outcome := 'written';
  IF NOT FOUND THEN
    outcome := 'changed';
    SELECT r.version INTO version FROM leasehold.records r WHERE r.key = p_key;
  END IF;
END
$$;
