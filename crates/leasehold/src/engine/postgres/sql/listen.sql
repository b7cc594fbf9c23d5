-- The offers to waiters of this process, on these locks, that were not renewed yet. A process that receives a message asks this before it relies on an offer, since
-- anybody who may connect to the database can send a message.
CREATE OR REPLACE FUNCTION leasehold.offers(p_listener text, p_names text[])
RETURNS TABLE (number bigint, token bigint, offer_ms bigint, at_us bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
  RETURN QUERY SELECT h.number, h.token, round(extract(epoch FROM h.expires_at - h.since) * 1000)::bigint, leasehold.micros(h.since)
  FROM leasehold.holders h
  WHERE h.name = ANY (p_names) AND h.listener = p_listener AND h.offered AND h.expires_at > clock_timestamp();
END
$$;

-- The call that a process which waits repeats, three times a second. It reports that the process is alive for p_alive milliseconds more; p_in_session is whether
-- this session has the advisory lock on its id. On the locks that the process waits for (p_names) it offers those whose offers have ended to the next waiters.
-- Where a holder has expired, the first waiter of the process is told to look: it may expect the lock to be held for longer, since it met an earlier holder.
--
-- Returns whether the process counted as alive all the time, the server's time, and what is new for its waiters, should a message have been lost: offers, with a
-- token, and notices to look after offer_ms, without one. There is always a row, if need be without a number.
CREATE OR REPLACE FUNCTION leasehold.beat(
  p_listener text, p_in_session boolean, p_alive bigint, p_names text[], p_patience bigint
)
RETURNS TABLE (was_alive boolean, now_us bigint, number bigint, token bigint, offer_ms bigint, at_us bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_set text := leasehold.begin_call(p_patience);
  v_now timestamptz := clock_timestamp();
  v_name text;
  v_was_offer boolean;
  v_lock leasehold.holders;
BEGIN
  v_set := leasehold.durably();
  now_us := leasehold.micros(v_now);
  PERFORM leasehold.note_crash(v_now);
  SELECT l.alive_until > v_now AND NOT l.passed_over INTO was_alive
  FROM leasehold.listeners l WHERE l.id = p_listener FOR UPDATE;
  IF NOT FOUND THEN
    -- A new process removes the rows of a few that have gone. Ids are random, so it looks at a random place among them.
    DELETE FROM leasehold.listeners WHERE id IN (
      SELECT l.id FROM leasehold.listeners l
      WHERE l.id > 'leasehold_' || md5(random()::text) AND l.alive_until < v_now - interval '10 seconds'
      ORDER BY l.id LIMIT 8 FOR UPDATE SKIP LOCKED);
  END IF;
  was_alive := coalesce(was_alive, false);
  INSERT INTO leasehold.listeners AS l (id, alive_until, session, passed_over)
  VALUES (p_listener, v_now + p_alive * interval '1 millisecond', CASE WHEN p_in_session THEN pg_backend_pid() END, false)
  ON CONFLICT (id) DO UPDATE
  SET alive_until = excluded.alive_until, session = excluded.session, passed_over = false;
  FOR v_name, v_was_offer IN
    SELECT h.name, bool_or(h.offered) FROM leasehold.holders h
    WHERE h.name = ANY (p_names) AND h.claim IS NOT NULL AND h.expires_at <= v_now GROUP BY h.name
  LOOP
    IF NOT v_was_offer THEN
      RETURN QUERY SELECT was_alive, now_us, w.number, NULL::bigint, 0::bigint, now_us
      FROM leasehold.waiters w WHERE w.name = v_name AND w.listener = p_listener AND NOT w.lapsed ORDER BY w.position LIMIT 1;
    -- If another call has the turn, that one does the same.
    ELSIF leasehold.try_turn(v_name) THEN
      -- A transaction that has checked the lease may still be open. A beat does not wait for it, since messages for waiters of other locks come over this session.
      CONTINUE WHEN EXISTS (
        SELECT FROM leasehold.holders h WHERE h.name = v_name AND h.claim IS NOT NULL AND h.expires_at <= v_now
          AND NOT pg_try_advisory_xact_lock(hashtextextended(h.name, h.token)));
      v_lock := leasehold.expire(v_name, p_listener, v_now, v_now);
      PERFORM leasehold.admit(v_name, v_now, leasehold.held(v_lock), v_lock.mode, p_listener, NULL, NULL);
    END IF;
  END LOOP;
  RETURN QUERY SELECT was_alive, now_us, o.number, o.token, o.offer_ms, o.at_us
  FROM (VALUES (true)) always LEFT JOIN leasehold.offers(p_listener, p_names) o ON true;
  RETURN QUERY UPDATE leasehold.waiters w SET look_at = NULL
  FROM (SELECT f.name, f.claim, f.look_at FROM leasehold.waiters f
        WHERE f.listener = p_listener AND f.look_at IS NOT NULL) before
  WHERE w.name = before.name AND w.claim = before.claim
  RETURNING was_alive, now_us, w.number, NULL::bigint,
    greatest(0, ceil(extract(epoch FROM before.look_at - v_now) * 1000))::bigint, now_us;
END
$$;

