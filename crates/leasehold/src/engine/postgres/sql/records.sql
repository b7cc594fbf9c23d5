-- Writes a guarded record if it still has the version p_expected; if that is null, if there is no row. A null value means that the record is deleted, and only
-- its version and token are kept. p_lifetime is in microseconds; null means for ever, and zero that no row is left. Returns whether it was written.
CREATE OR REPLACE FUNCTION leasehold.write_record(
  p_key text, p_value bytea, p_version bigint, p_token bigint, p_lock text, p_lifetime bigint, p_expected bigint
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_set text := leasehold.durably();
  v_now timestamptz := clock_timestamp();
  v_ends_at timestamptz := v_now + p_lifetime * interval '1 microsecond';
  v_is_written boolean;
BEGIN
  IF p_lifetime = 0 THEN
    DELETE FROM leasehold.records r WHERE r.key = p_key AND r.version = p_expected;
  ELSIF p_expected IS NULL THEN
    INSERT INTO leasehold.records VALUES (p_key, p_value, p_version, p_token, p_lock, v_ends_at) ON CONFLICT DO NOTHING;
  ELSE
    UPDATE leasehold.records r SET value = p_value, version = p_version, token = p_token, lock = p_lock, ends_at = v_ends_at
    WHERE r.key = p_key AND r.version = p_expected;
  END IF;
  v_is_written := FOUND;
  IF p_lifetime IS NOT NULL THEN
    -- Removes a few other records whose lifetime is over. It never waits for a row lock, so that two calls cannot wait for each other.
    DELETE FROM leasehold.records r WHERE r.key IN (
      SELECT s.key FROM leasehold.records s WHERE s.ends_at <= v_now AND s.key <> p_key
      ORDER BY s.ends_at LIMIT 8 FOR UPDATE SKIP LOCKED);
  END IF;
  RETURN v_is_written;
END
$$;
