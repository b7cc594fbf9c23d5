-- A process that waits says so, again and again, and for which locks. It hears what has been handed over to its waiters, and which of
-- them should look (those without a token), should a message have been lost. Whoever does so passes on what was handed to the dead.
CREATE OR REPLACE FUNCTION leasehold.beat(
  p_listener text, p_in_session boolean, p_alive bigint, p_names text[], p_patience bigint
)
RETURNS TABLE (was_alive boolean, now_us bigint, number bigint, token bigint, offer_ms bigint, at_us bigint)
LANGUAGE plpgsql AS $$
DECLARE
  v_set text := leasehold.begin_call(p_patience);
  v_now timestamptz := clock_timestamp();
  v_name text;
  v_lock leasehold.holders;
BEGIN
  v_set := leasehold.durably();
  now_us := leasehold.micros(v_now);
  SELECT l.alive_until > v_now AND NOT l.passed_over INTO was_alive
  FROM leasehold.listeners l WHERE l.id = p_listener FOR UPDATE;
  was_alive := coalesce(was_alive, false);
  INSERT INTO leasehold.listeners AS l VALUES (p_listener, v_now + p_alive * interval '1 millisecond', p_in_session, false)
  ON CONFLICT (id) DO UPDATE
  SET alive_until = excluded.alive_until, in_session = excluded.in_session, passed_over = false;
  FOR v_name IN
    SELECT DISTINCT h.name FROM leasehold.holders h WHERE h.name = ANY (p_names) AND h.offered AND h.expires_at <= v_now
  LOOP
    -- Whoever else is at it will do the same.
    IF leasehold.try_turn(v_name) THEN
      v_lock := leasehold.expire(v_name, p_listener, v_now, v_now);
      PERFORM leasehold.admit(v_name, v_now, leasehold.held(v_lock), v_lock.mode, p_listener, NULL, NULL);
    END IF;
  END LOOP;
  RETURN QUERY SELECT was_alive, now_us, h.number, h.token,
    round(extract(epoch FROM h.expires_at - h.since) * 1000)::bigint, leasehold.micros(h.since)
  FROM (VALUES (true)) always
  LEFT JOIN leasehold.holders h
    ON h.name = ANY (p_names) AND h.listener = p_listener AND h.offered AND h.expires_at > v_now;
  RETURN QUERY UPDATE leasehold.waiters w SET look_at = NULL
  FROM (SELECT f.name, f.claim, f.look_at FROM leasehold.waiters f
        WHERE f.listener = p_listener AND f.look_at IS NOT NULL) before
  WHERE w.name = before.name AND w.claim = before.claim
  RETURNING was_alive, now_us, w.number, NULL::bigint,
    greatest(0, ceil(extract(epoch FROM before.look_at - v_now) * 1000))::bigint, now_us;
END
$$;

-- Removes what nobody will ask for again; whether there may be more of it.
CREATE OR REPLACE FUNCTION leasehold.sweep() RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
  v_set text;
  v_now timestamptz := clock_timestamp();
  v_long_ago timestamptz := v_now - interval '10 seconds';
  v_seen integer := 0;
  v_name text;
  v_lock leasehold.holders;
  v_greatest bigint := 0;
BEGIN
  v_set := leasehold.not_durably();
  DELETE FROM leasehold.waiters w WHERE w.since < v_long_ago AND (w.lapsed OR NOT EXISTS (
    SELECT FROM leasehold.listeners l WHERE l.id = w.listener AND l.alive_until > v_long_ago));
  DELETE FROM leasehold.listeners WHERE id IN (
    SELECT l.id FROM leasehold.listeners l
    WHERE l.alive_until < v_now - interval '1 minute' FOR UPDATE SKIP LOCKED);
  -- Few at a time: each is a lock that the server has to remember.
  FOR v_name IN
    SELECT l.name FROM leasehold.holders l
    WHERE l.slot = '' AND l.since < v_long_ago AND NOT EXISTS (
      SELECT FROM leasehold.holders h WHERE h.name = l.name AND h.claim IS NOT NULL AND h.expires_at >= v_long_ago)
    LIMIT 50
  LOOP
    v_seen := v_seen + 1;
    v_set := leasehold.begin_call(100);
    CONTINUE WHEN NOT leasehold.try_turn(v_name);
    -- A transaction that has checked a lease may still be open.
    CONTINUE WHEN EXISTS (SELECT FROM leasehold.holders h WHERE h.name = v_name AND h.claim IS NOT NULL
      AND (h.expires_at >= v_long_ago OR NOT pg_try_advisory_xact_lock(hashtextextended(h.name, h.token))));
    v_lock := leasehold.expire(v_name, NULL, v_now, v_now);
    PERFORM leasehold.admit(v_name, v_now, leasehold.held(v_lock), v_lock.mode, NULL, NULL, NULL);
    DELETE FROM leasehold.holders h
    WHERE h.name = v_name AND h.slot = '' AND h.claim IS NULL AND h.together = 0 AND NOT h.queued RETURNING h.* INTO v_lock;
    v_greatest := greatest(v_greatest, v_lock.token, v_lock.reserved);
  END LOOP;
  UPDATE leasehold.tokens t SET forgotten = v_greatest WHERE t.only_row AND t.forgotten < v_greatest;
  RETURN v_seen = 50 AND v_greatest > 0;
END
$$;
