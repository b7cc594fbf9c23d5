-- Whether a claim of this mode may hold the lock beside p_held others of the mode p_held_mode.
CREATE OR REPLACE FUNCTION leasehold.fits(p_mode integer, p_held bigint, p_held_mode integer) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
  SELECT p_held = 0 OR (p_mode <> 0 AND p_held_mode = p_mode AND (p_mode = -1 OR p_held < p_mode))
$$;

-- For how many milliseconds a lock may be offered to a waiter of this listener; null if the process is dead. p_asker is the listener of the process that makes
-- this call, which is certainly alive.
--
-- If the listener's session has an advisory lock on its id, a process that was killed is recognized at once: the lock is free. (The session itself cannot ask
-- so, since it could take its own lock once more.) A listener without one polls, and so learns of the offer soon: a shorter one is enough.
CREATE OR REPLACE FUNCTION leasehold.offer_to(p_listener text, p_asker text, p_now timestamptz) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
  v_session integer;
  v_is_late boolean;
BEGIN
  IF p_listener = p_asker THEN
    RETURN 500;
  END IF;
  SELECT session, alive_until <= p_now INTO v_session, v_is_late FROM leasehold.listeners WHERE id = p_listener;
  IF NOT FOUND OR (v_session <> pg_backend_pid() AND pg_try_advisory_xact_lock_shared(hashtextextended(p_listener, 0))) THEN
    RETURN NULL;
  END IF;
  IF v_is_late THEN
    -- If the row is locked, the listener is just reporting that it is alive. Otherwise it counts as dead; should it be alive, its next beat learns that its
    -- waiters were passed over.
    PERFORM FROM leasehold.listeners WHERE id = p_listener AND alive_until <= p_now FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE leasehold.listeners SET passed_over = true WHERE id = p_listener;
      RETURN NULL;
    END IF;
  END IF;
  RETURN CASE WHEN v_session IS NOT NULL THEN 500 ELSE 250 END;
END
$$;

-- Puts a waiter back whose offer has ended unused. It may not have learned of the offer, so it is sent a notice to look. But it may also have learned of it and
-- lost the lock since; so its row is marked as lapsed. Its new position, at the end of the queue, counts only once the waiter makes another attempt.
CREATE OR REPLACE FUNCTION leasehold.put_back(p_gone leasehold.holders, p_asker text, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF p_gone.offered AND leasehold.offer_to(p_gone.listener, p_asker, p_now) IS NOT NULL THEN
    INSERT INTO leasehold.waiters (name, claim, mode, ttl, since, listener, number, look_at, lapsed, owner, host, pid, reason)
    VALUES (p_gone.name, p_gone.claim, p_gone.mode, p_gone.ttl, p_now, p_gone.listener, p_gone.number, p_now, true,
      p_gone.owner, p_gone.host, p_gone.pid, p_gone.reason)
    ON CONFLICT DO NOTHING;
    PERFORM pg_notify(p_gone.listener, concat_ws(':', 'look', p_gone.number, 0));
  END IF;
END
$$;

-- Writes the row of leasehold.crashes if it is missing. A time in the future is from before the clock was set back, and is replaced.
CREATE OR REPLACE FUNCTION leasehold.note_crash(p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  -- Mostly the row is there, and nothing is locked.
  IF NOT EXISTS (SELECT FROM leasehold.crashes c WHERE c.only_row AND c.noticed_at <= p_now) THEN
    INSERT INTO leasehold.crashes AS c VALUES (p_now) ON CONFLICT (only_row) DO UPDATE SET noticed_at = p_now WHERE c.noticed_at > p_now;
  END IF;
END
$$;

-- Removes the holders that expire by p_until, and returns the lock's own row as it is then. Waits for transactions that have checked one of their leases.
--
-- An exclusive offer that may be from before a crash lasts until its backed_until instead: see the example at leasehold.holders. It may be that old unless the
-- last crash was noticed before it was made.
CREATE OR REPLACE FUNCTION leasehold.expire(p_name text, p_asker text, p_now timestamptz, p_until timestamptz)
RETURNS leasehold.holders
LANGUAGE plpgsql AS $$
DECLARE
  v_gone leasehold.holders;
  v_lock leasehold.holders;
BEGIN
  UPDATE leasehold.holders h SET expires_at = h.backed_until, offered = false
  WHERE h.name = p_name AND h.slot = '' AND h.offered AND h.expires_at <= p_until AND NOT EXISTS (
    SELECT FROM leasehold.crashes c WHERE c.only_row AND c.noticed_at <= h.since);
  FOR v_gone IN
    UPDATE leasehold.holders h SET claim = NULL, offered = false FROM leasehold.holders was
    WHERE h.name = p_name AND h.slot = '' AND h.claim IS NOT NULL AND h.expires_at <= p_until
      AND was.name = h.name AND was.slot = h.slot
    RETURNING was.*
  LOOP
    PERFORM leasehold.await_checks(p_name, v_gone.token), leasehold.put_back(v_gone, p_asker, p_now);
  END LOOP;
  FOR v_gone IN
    DELETE FROM leasehold.holders h WHERE h.name = p_name AND h.slot <> '' AND h.expires_at <= p_until RETURNING h.*
  LOOP
    PERFORM leasehold.await_checks(p_name, v_gone.token), leasehold.put_back(v_gone, p_asker, p_now);
    UPDATE leasehold.holders h SET together = h.together - 1 WHERE h.name = p_name AND h.slot = '';
  END LOOP;
  SELECT * INTO v_lock FROM leasehold.holders h WHERE h.name = p_name AND h.slot = '';
  RETURN v_lock;
END
$$;

-- Notifies the first waiter that the lock ends at p_at: it may expect it to last longer.
CREATE OR REPLACE FUNCTION leasehold.notify_first(p_name text, p_at timestamptz, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  v_sent text;
BEGIN
  UPDATE leasehold.waiters w SET look_at = p_at
  WHERE w.name = p_name AND w.position = (SELECT min(f.position) FROM leasehold.waiters f WHERE f.name = p_name AND NOT f.lapsed)
  RETURNING pg_notify(w.listener, concat_ws(':', 'look', w.number, greatest(0, ceil(extract(epoch FROM p_at - p_now) * 1000))))::text
  INTO v_sent;
END
$$;

-- How many claims hold the lock whose own row this is.
CREATE OR REPLACE FUNCTION leasehold.held(p_lock leasehold.holders) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN (p_lock).claim IS NULL THEN (p_lock).together ELSE 1 END
$$;

-- Makes a waiter a holder of its lock, until p_until; p_offered if that is an offer. It must fit beside the other holders. Returns its token.
CREATE OR REPLACE FUNCTION leasehold.enter(
  p_who leasehold.waiters, p_now timestamptz, p_until timestamptz, p_backed_until timestamptz, p_offered boolean
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  v_token bigint;
BEGIN
  IF p_who.mode = 0 THEN
    UPDATE leasehold.holders h SET claim = p_who.claim, mode = 0, since = p_now,
      token = leasehold.token_after(h.token, p_now), expires_at = p_until, backed_until = p_backed_until, offered = p_offered, ttl = p_who.ttl, listener = p_who.listener,
      number = p_who.number, owner = p_who.owner, host = p_who.host, pid = p_who.pid, reason = p_who.reason
    WHERE h.name = p_who.name AND h.slot = '' RETURNING h.token INTO v_token;
  ELSE
    UPDATE leasehold.holders h SET mode = p_who.mode, since = p_now,
      token = leasehold.token_after(h.token, p_now), together = h.together + 1
    WHERE h.name = p_who.name AND h.slot = '' RETURNING h.token INTO v_token;
    INSERT INTO leasehold.holders VALUES (p_who.name, p_who.claim, p_who.claim, p_who.mode, v_token, p_now, p_until,
      p_backed_until, p_offered, 0, false, p_who.ttl, p_who.listener, p_who.number,
      p_who.owner, p_who.host, p_who.pid, p_who.reason);
  END IF;
  RETURN v_token;
END
$$;

-- Grants the lock to the waiters at the head of the queue for as long as they fit, and takes them out of the queue. Waiters whose process is dead are removed.
-- Expired holders have been removed before, and p_held of the mode p_held_mode are left.
--
-- p_own, the claim that makes this attempt, gets its whole TTL. To every other waiter the lock is offered: it is the holder for half a second, or longer if it
-- renews in that time. A message (NOTIFY) wakes its process. But the first offer to a waiter of the calling process (p_asker) is returned instead: its number,
-- token and time. p_backed_until: see leasehold.holders; null if the offers' commit must wait for the disk.
--
-- offers is how many offers were made, latest the last token that was given.
CREATE OR REPLACE FUNCTION leasehold.admit(
  p_name text, p_now timestamptz, p_held integer, p_held_mode integer,
  p_asker text, p_own bytea, p_backed_until timestamptz,
  OUT offers integer, OUT latest bigint, OUT number bigint, OUT token bigint, OUT offer_ms bigint
)
LANGUAGE plpgsql AS $$
DECLARE
  v_held integer := p_held;
  v_held_mode integer := p_held_mode;
  v_waiter leasehold.waiters;
  v_is_own boolean;
  v_offer bigint;
  v_until timestamptz;
  v_sent text;
BEGIN
  offers := 0;
  WHILE v_held = 0 OR v_held_mode <> 0 LOOP
    -- Removes the first waiter, if it fits or is dead. The subquery locks its row: a row that a sweep deletes meanwhile must not hide those behind it.
    DELETE FROM leasehold.waiters w
    WHERE (w.name, w.claim) = (SELECT f.name, f.claim FROM leasehold.waiters f
        WHERE f.name = p_name AND NOT f.lapsed ORDER BY f.position LIMIT 1 FOR UPDATE)
      AND (v_held = 0 OR leasehold.fits(w.mode, v_held, v_held_mode)
        OR (w.claim IS DISTINCT FROM p_own AND leasehold.offer_to(w.listener, p_asker, p_now) IS NULL))
    RETURNING * INTO v_waiter;
    EXIT WHEN NOT FOUND;
    v_is_own := v_waiter.claim IS NOT DISTINCT FROM p_own;
    v_offer := CASE WHEN v_is_own THEN v_waiter.ttl ELSE leasehold.offer_to(v_waiter.listener, p_asker, p_now) END;
    CONTINUE WHEN v_offer IS NULL;
    v_offer := least(v_offer, v_waiter.ttl);
    v_until := p_now + v_offer * interval '1 millisecond';
    latest := leasehold.enter(v_waiter, p_now, v_until, coalesce(p_backed_until, v_until), NOT v_is_own);
    v_held := v_held + 1;
    v_held_mode := v_waiter.mode;
    CONTINUE WHEN v_is_own;
    offers := offers + 1;
    IF number IS NULL AND v_waiter.listener = p_asker THEN
      number := v_waiter.number;
      token := latest;
      offer_ms := v_offer;
    ELSE
      v_sent := pg_notify(v_waiter.listener, concat_ws(':', 'offer', v_waiter.number));
    END IF;
  END LOOP;
  IF v_held = p_held THEN
    UPDATE leasehold.holders h SET queued = false WHERE h.name = p_name AND h.slot = '' AND h.queued
      AND NOT EXISTS (SELECT FROM leasehold.waiters w WHERE w.name = p_name AND NOT w.lapsed);
  END IF;
END
$$;
