-- Whether another may enter beside those who hold the lock.
CREATE OR REPLACE FUNCTION leasehold.fits(p_mode integer, p_held bigint, p_held_mode integer) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
  SELECT p_held = 0 OR (p_mode <> 0 AND p_held_mode = p_mode AND (p_mode = -1 OR p_held < p_mode))
$$;

-- For how many milliseconds a lock may be handed over to a process that waits, until it has said a word; null if it is dead. One
-- that was killed is known at once where its session is its own. One that asks again and again will ask soon. p_asker, which asks
-- just now, is alive.
CREATE OR REPLACE FUNCTION leasehold.offer_to(p_listener text, p_asker text, p_now timestamptz) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
  v_in_session boolean;
  v_is_late boolean;
BEGIN
  IF p_listener = p_asker THEN
    RETURN 500;
  END IF;
  SELECT in_session, alive_until <= p_now INTO v_in_session, v_is_late FROM leasehold.listeners WHERE id = p_listener;
  IF NOT FOUND OR (v_in_session AND pg_try_advisory_xact_lock_shared(hashtextextended(p_listener, 0))) THEN
    RETURN NULL;
  END IF;
  IF v_is_late THEN
    -- A row that is locked is that of one who says just now that it is alive. Any other hears with its next beat, should there be
    -- one, that it was passed over.
    PERFORM FROM leasehold.listeners WHERE id = p_listener AND alive_until <= p_now FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE leasehold.listeners SET passed_over = true WHERE id = p_listener;
      RETURN NULL;
    END IF;
  END IF;
  RETURN CASE WHEN v_in_session THEN 500 ELSE 250 END;
END
$$;

-- What becomes of one that was handed the lock and is not known to have heard of it: it is told to look, and has a place at the end
-- of the queue that counts once it asks again. It may have heard, and have lost the lock since.
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

-- Removes holders whose time is over by p_until, and tells what is left. Who has checked a lease in a transaction is waited for.
CREATE OR REPLACE FUNCTION leasehold.expire(p_name text, p_asker text, p_now timestamptz, p_until timestamptz)
RETURNS leasehold.holders
LANGUAGE plpgsql AS $$
DECLARE
  v_gone leasehold.holders;
  v_lock leasehold.holders;
BEGIN
  FOR v_gone IN
    UPDATE leasehold.holders h SET claim = NULL, offered = false FROM leasehold.holders was
    WHERE h.name = p_name AND h.slot = '' AND h.claim IS NOT NULL AND h.expires_at <= p_until
      AND was.name = h.name AND was.slot = h.slot
    RETURNING was.*
  LOOP
    -- It may have passed the lock on.
    PERFORM leasehold.await_checks(p_name, t) FROM generate_series(v_gone.token, greatest(v_gone.token, v_gone.reserved)) t;
    PERFORM leasehold.put_back(v_gone, p_asker, p_now);
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

-- How many hold it.
CREATE OR REPLACE FUNCTION leasehold.held(p_lock leasehold.holders) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN (p_lock).claim IS NULL THEN (p_lock).together ELSE 1 END
$$;

-- Who comes next, as long as they all wait in this process: those that its holder may pass the lock on to, by themselves.
CREATE OR REPLACE FUNCTION leasehold.heirs(p_name text, p_listener text, OUT numbers bigint[], OUT offer_ms bigint)
LANGUAGE plpgsql AS $$
DECLARE
  v_waiter record;
BEGIN
  numbers := '{}';
  offer_ms := 500;
  FOR v_waiter IN
    SELECT w.mode, w.listener, w.number, w.ttl FROM leasehold.waiters w
    WHERE w.name = p_name AND NOT w.lapsed ORDER BY w.place LIMIT 16
  LOOP
    EXIT WHEN v_waiter.mode <> 0 OR v_waiter.listener <> p_listener;
    numbers := numbers || v_waiter.number;
    offer_ms := least(offer_ms, v_waiter.ttl);
  END LOOP;
END
$$;

-- Writes down a new holder: it fits, and whoever held the lock alone is gone. Tells its token; those that follow are reserved for so
-- many heirs.
CREATE OR REPLACE FUNCTION leasehold.enter(
  p_who leasehold.waiters, p_heirs integer, p_now timestamptz, p_until timestamptz, p_backed_until timestamptz, p_offered boolean
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  v_token bigint;
BEGIN
  IF p_who.mode = 0 THEN
    UPDATE leasehold.holders h SET claim = p_who.claim, mode = 0, since = p_now,
      token = leasehold.token_after(h.token, h.reserved, p_now),
      reserved = leasehold.token_after(h.token, h.reserved, p_now) + p_heirs,
      expires_at = p_until, backed_until = p_backed_until, offered = p_offered, ttl = p_who.ttl, listener = p_who.listener,
      number = p_who.number, owner = p_who.owner, host = p_who.host, pid = p_who.pid, reason = p_who.reason
    WHERE h.name = p_who.name AND h.slot = '' RETURNING h.token INTO v_token;
  ELSE
    UPDATE leasehold.holders h SET mode = p_who.mode, since = p_now,
      token = leasehold.token_after(h.token, h.reserved, p_now), together = h.together + 1
    WHERE h.name = p_who.name AND h.slot = '' RETURNING h.token INTO v_token;
    INSERT INTO leasehold.holders VALUES (p_who.name, p_who.claim, p_who.claim, p_who.mode, v_token, p_now, p_until,
      p_backed_until, p_offered, 0, false, 0, p_who.ttl, p_who.listener, p_who.number,
      p_who.owner, p_who.host, p_who.pid, p_who.reason);
  END IF;
  RETURN v_token;
END
$$;

-- Lets in whoever is next while it fits; whose process is dead is passed over. The lock is handed over for half a second,
-- until its holder renews, and one message says so; but if the process that asks has a waiter among them, the answer tells of one
-- of those. p_own, the claim that is asked for, gets its whole TTL. Expired holders have been removed, and there are p_held.
-- If those who come next wait in the same process as the new holder, that one is told.
CREATE OR REPLACE FUNCTION leasehold.admit(
  p_name text, p_now timestamptz, p_held integer, p_held_mode integer,
  p_asker text, p_own bytea, p_backed_until timestamptz,
  OUT handed_over integer, OUT latest bigint, OUT number bigint, OUT token bigint, OUT offer_ms bigint,
  OUT heirs bigint[], OUT heir_token bigint, OUT heir_offer_ms bigint
)
LANGUAGE plpgsql AS $$
DECLARE
  v_held integer := p_held;
  v_held_mode integer := p_held_mode;
  v_waiter leasehold.waiters;
  v_heirs record;
  v_is_own boolean;
  v_offer bigint;
  v_until timestamptz;
  v_told text;
BEGIN
  handed_over := 0;
  WHILE v_held = 0 OR v_held_mode <> 0 LOOP
    -- The first, if it fits or is dead.
    DELETE FROM leasehold.waiters w
    WHERE w.ctid = (SELECT f.ctid FROM leasehold.waiters f WHERE f.name = p_name AND NOT f.lapsed ORDER BY f.place LIMIT 1)
      AND (v_held = 0 OR leasehold.fits(w.mode, v_held, v_held_mode)
        OR (w.claim IS DISTINCT FROM p_own AND leasehold.offer_to(w.listener, p_asker, p_now) IS NULL))
    RETURNING * INTO v_waiter;
    EXIT WHEN NOT FOUND;
    v_is_own := v_waiter.claim IS NOT DISTINCT FROM p_own;
    v_offer := CASE WHEN v_is_own THEN v_waiter.ttl ELSE leasehold.offer_to(v_waiter.listener, p_asker, p_now) END;
    CONTINUE WHEN v_offer IS NULL;
    v_offer := least(v_offer, v_waiter.ttl);
    v_until := p_now + v_offer * interval '1 millisecond';
    heirs := '{}';
    IF v_waiter.mode = 0 AND NOT v_is_own THEN
      v_heirs := leasehold.heirs(p_name, v_waiter.listener);
      heirs := v_heirs.numbers;
      heir_offer_ms := v_heirs.offer_ms;
    END IF;
    latest := leasehold.enter(v_waiter, cardinality(heirs), p_now, v_until, coalesce(p_backed_until, v_until), NOT v_is_own);
    heir_token := latest + 1;
    v_held := v_held + 1;
    v_held_mode := v_waiter.mode;
    CONTINUE WHEN v_is_own;
    handed_over := handed_over + 1;
    IF number IS NULL AND v_waiter.listener = p_asker THEN
      number := v_waiter.number;
      token := latest;
      offer_ms := v_offer;
    ELSE
      v_told := pg_notify(v_waiter.listener, concat_ws(':',
        'granted', v_waiter.number, latest, v_offer, leasehold.micros(p_now),
        heir_token, heir_offer_ms, array_to_string(heirs, ',')));
    END IF;
  END LOOP;
  IF v_held = p_held THEN
    UPDATE leasehold.holders h SET queued = false WHERE h.name = p_name AND h.slot = '' AND h.queued
      AND NOT EXISTS (SELECT FROM leasehold.waiters w WHERE w.name = p_name AND NOT w.lapsed);
  END IF;
END
$$;
