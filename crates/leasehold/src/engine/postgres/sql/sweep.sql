-- Forgets those of these locks that nobody has used for ten seconds: deletes their rows, with what is left of holders and waiters, and keeps the greatest token.
-- Returns how many were forgotten. The call takes the turn of each lock, and the server's memory for advisory locks is limited: so there should be few names.
CREATE OR REPLACE FUNCTION leasehold.forget(p_names text[], p_now timestamptz) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
  v_long_ago timestamptz := p_now - interval '10 seconds';
  v_name text;
  v_token bigint;
  v_greatest bigint := 0;
  v_forgotten integer := 0;
  v_old bigint;
BEGIN
  -- One call at a time; no other waits for it.
  PERFORM FROM leasehold.tokens t WHERE t.only_row FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN 0;
  END IF;
  FOREACH v_name IN ARRAY p_names LOOP
    CONTINUE WHEN NOT leasehold.try_turn(v_name);
    -- The lock may have been used since the caller looked. A renewal takes no turn, so only rows that are locked here are certain to be old; all must be.
    PERFORM FROM leasehold.holders h WHERE h.name = v_name AND h.since < v_long_ago
      AND (h.claim IS NULL OR h.backed_until < v_long_ago) FOR UPDATE SKIP LOCKED;
    GET DIAGNOSTICS v_old = ROW_COUNT;
    CONTINUE WHEN v_old < (SELECT count(*) FROM leasehold.holders h WHERE h.name = v_name);
    -- A transaction that has checked the lease may still be open.
    CONTINUE WHEN EXISTS (
      SELECT FROM leasehold.holders h WHERE h.name = v_name AND h.claim IS NOT NULL
        AND NOT pg_try_advisory_xact_lock(hashtextextended(h.name, h.token)));
    CONTINUE WHEN EXISTS (
      SELECT FROM leasehold.waiters w WHERE w.name = v_name AND (w.since >= v_long_ago OR (NOT w.lapsed AND EXISTS (
        SELECT FROM leasehold.listeners l WHERE l.id = w.listener AND l.alive_until >= v_long_ago))));
    DELETE FROM leasehold.waiters w WHERE w.name = v_name;
    WITH gone AS (DELETE FROM leasehold.holders h WHERE h.name = v_name RETURNING h.token)
    SELECT max(g.token) INTO v_token FROM gone g;
    v_greatest := greatest(v_greatest, v_token);
    v_forgotten := v_forgotten + 1;
  END LOOP;
  UPDATE leasehold.tokens t SET forgotten = v_greatest WHERE t.only_row AND t.forgotten < v_greatest;
  RETURN v_forgotten;
END
$$;

-- Forgets up to eight locks: part of the first attempt on a new name, so that the table does not grow with the number of names. It looks at one random page of
-- the table, so that it takes no longer the larger the table is.
CREATE OR REPLACE FUNCTION leasehold.forget_some(p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  v_pages bigint := pg_relation_size('leasehold.holders') / current_setting('block_size')::bigint;
  v_page bigint := floor(random() * v_pages);
  v_rows tid[];
  v_names text[];
BEGIN
  SELECT array_agg(format('(%s,%s)', v_page, nth)::tid) INTO v_rows FROM generate_series(1, 60) nth;
  SELECT array_agg(o.name) INTO v_names FROM (
    SELECT h.name FROM leasehold.holders h
    WHERE h.ctid = ANY (v_rows) AND h.slot = '' AND h.since < p_now - interval '10 seconds' LIMIT 8) o;
  IF v_names IS NOT NULL THEN
    PERFORM leasehold.forget(v_names, p_now);
  END IF;
END
$$;

-- Removes rows that are of no more use, a limited number of them. Returns whether there may be more.
CREATE OR REPLACE FUNCTION leasehold.sweep() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_set text;
  v_now timestamptz := clock_timestamp();
  v_long_ago timestamptz := v_now - interval '10 seconds';
  v_names text[];
BEGIN
  v_set := leasehold.not_durably();
  PERFORM leasehold.note_crash(v_now);
  DELETE FROM leasehold.waiters w WHERE w.since < v_long_ago AND (w.lapsed OR NOT EXISTS (
    SELECT FROM leasehold.listeners l WHERE l.id = w.listener AND l.alive_until > v_long_ago));
  DELETE FROM leasehold.listeners WHERE id IN (
    SELECT l.id FROM leasehold.listeners l
    WHERE l.alive_until < v_now - interval '1 minute' FOR UPDATE SKIP LOCKED);
  v_set := leasehold.begin_call(100);
  SELECT array_agg(o.name) INTO v_names FROM (
    SELECT l.name FROM leasehold.holders l
    WHERE l.slot = '' AND l.since < v_long_ago AND NOT EXISTS (
      SELECT FROM leasehold.holders h WHERE h.name = l.name AND h.claim IS NOT NULL AND h.backed_until >= v_long_ago)
    LIMIT 50) o;
  RETURN v_names IS NOT NULL AND leasehold.forget(v_names, v_now) > 0 AND cardinality(v_names) = 50;
END
$$;
