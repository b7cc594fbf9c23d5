-- A process that waits says so, again and again, and hears what has been handed over to its waiters, and which of them should
-- look (those without a token), should a message have been lost. Whoever does so passes on what was handed to the dead.
CREATE OR REPLACE FUNCTION leasehold.beat(p_listener text, p_in_session boolean, p_alive bigint, p_patience bigint)
RETURNS TABLE (was_alive boolean, now_us bigint, number bigint, token bigint, offer_ms bigint, at_us bigint)
LANGUAGE plpgsql AS $$
DECLARE
  v_set text := leasehold.begin_call(p_patience);
  v_now timestamptz := clock_timestamp();
  v_name text;
  v_held bigint;
  v_held_mode integer;
BEGIN
  v_set := leasehold.durably();
  now_us := leasehold.micros(v_now);
  SELECT l.alive_until > v_now AND NOT l.passed_over INTO was_alive
  FROM leasehold.listeners l WHERE l.id = p_listener FOR UPDATE;
  was_alive := coalesce(was_alive, false);
  INSERT INTO leasehold.listeners AS l VALUES (p_listener, v_now + p_alive * interval '1 millisecond', p_in_session, false)
  ON CONFLICT (id) DO UPDATE
  SET alive_until = excluded.alive_until, in_session = excluded.in_session, passed_over = false;
  FOR v_name IN SELECT DISTINCT h.name FROM leasehold.holders h WHERE h.offered AND h.expires_at <= v_now LOOP
    -- Whoever else is at it will do the same.
    IF pg_try_advisory_xact_lock(1818583923, leasehold.stripe(v_name)) THEN
      PERFORM leasehold.expire(v_name, p_listener, v_now);
      SELECT count(*), min(h.mode) INTO v_held, v_held_mode FROM leasehold.holders h WHERE h.name = v_name;
      PERFORM leasehold.admit(v_name, leasehold.stripe(v_name), v_now, v_held, v_held_mode, p_listener, NULL, NULL);
    END IF;
  END LOOP;
  RETURN QUERY SELECT was_alive, now_us, h.number, h.token,
    round(extract(epoch FROM h.expires_at - h.since) * 1000)::bigint, leasehold.micros(h.since)
  FROM (VALUES (true)) always
  LEFT JOIN leasehold.holders h ON h.listener = p_listener AND h.offered AND h.expires_at > v_now;
  RETURN QUERY UPDATE leasehold.waiters w SET look_at = NULL
  FROM (SELECT f.name, f.claim, f.look_at FROM leasehold.waiters f
        WHERE f.listener = p_listener AND f.look_at IS NOT NULL) before
  WHERE w.name = before.name AND w.claim = before.claim
  RETURNING was_alive, now_us, w.number, NULL::bigint,
    greatest(0, ceil(extract(epoch FROM before.look_at - v_now) * 1000))::bigint, now_us;
END
$$;

-- Removes what nobody will ask for again.
CREATE OR REPLACE FUNCTION leasehold.sweep() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  v_set text;
  v_now timestamptz := clock_timestamp();
BEGIN
  v_set := leasehold.not_durably();
  DELETE FROM leasehold.holders WHERE (name, claim) IN (
    SELECT h.name, h.claim FROM leasehold.holders h
    WHERE h.expires_at < v_now - interval '10 seconds' LIMIT 10000 FOR UPDATE SKIP LOCKED);
  DELETE FROM leasehold.waiters w WHERE w.since < v_now - interval '10 seconds' AND (w.lapsed OR NOT EXISTS (
    SELECT FROM leasehold.listeners l WHERE l.id = w.listener AND l.alive_until > v_now - interval '10 seconds'));
  DELETE FROM leasehold.listeners WHERE id IN (
    SELECT l.id FROM leasehold.listeners l
    WHERE l.alive_until < v_now - interval '1 minute' FOR UPDATE SKIP LOCKED);
END
$$;
