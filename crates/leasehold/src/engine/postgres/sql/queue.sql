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

-- Removes holders whose time is over.
CREATE OR REPLACE FUNCTION leasehold.expire(p_name text, p_asker text, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  v_gone leasehold.holders;
BEGIN
  FOR v_gone IN DELETE FROM leasehold.holders h WHERE h.name = p_name AND h.expires_at <= p_now RETURNING h.* LOOP
    PERFORM leasehold.put_back(v_gone, p_asker, p_now);
  END LOOP;
END
$$;

-- Lets in whoever is next while it fits; whose process is dead is passed over. The lock is handed over for half a second,
-- until its holder renews, and one message says so; but if the process that asks has a waiter among them, the answer tells of one
-- of those. p_own, the claim that is asked for, gets its whole TTL. Expired holders have been removed, and there are p_held.
CREATE OR REPLACE FUNCTION leasehold.admit(
  p_name text, p_stripe integer, p_now timestamptz, p_held bigint, p_held_mode integer,
  p_asker text, p_own bytea, p_backed_until timestamptz,
  OUT handed_over integer, OUT number bigint, OUT token bigint, OUT offer_ms bigint
)
LANGUAGE plpgsql AS $$
DECLARE
  v_held bigint := p_held;
  v_held_mode integer := p_held_mode;
  v_waiter leasehold.waiters;
  v_is_own boolean;
  v_token bigint;
  v_offer bigint;
  v_until timestamptz;
  v_told text;
BEGIN
  handed_over := 0;
  WHILE v_held = 0 OR v_held_mode <> 0 LOOP
    SELECT * INTO v_waiter FROM leasehold.waiters w WHERE w.name = p_name AND NOT w.lapsed ORDER BY w.place LIMIT 1;
    EXIT WHEN NOT FOUND;
    v_is_own := v_waiter.claim IS NOT DISTINCT FROM p_own;
    v_offer := CASE WHEN v_is_own THEN v_waiter.ttl ELSE leasehold.offer_to(v_waiter.listener, p_asker, p_now) END;
    IF v_offer IS NOT NULL THEN
      EXIT WHEN NOT leasehold.fits(v_waiter.mode, v_held, v_held_mode);
      v_offer := least(v_offer, v_waiter.ttl);
      v_until := p_now + v_offer * interval '1 millisecond';
      v_token := leasehold.next_token(p_stripe, p_now);
      INSERT INTO leasehold.holders VALUES (p_name, v_waiter.claim, v_waiter.mode, v_token, p_now, v_until,
        coalesce(p_backed_until, v_until), NOT v_is_own, v_waiter.ttl, v_waiter.listener, v_waiter.number,
        v_waiter.owner, v_waiter.host, v_waiter.pid, v_waiter.reason);
      v_held := v_held + 1;
      v_held_mode := v_waiter.mode;
      IF NOT v_is_own THEN
        handed_over := handed_over + 1;
        IF number IS NULL AND v_waiter.listener = p_asker THEN
          number := v_waiter.number;
          token := v_token;
          offer_ms := v_offer;
        ELSE
          v_told := pg_notify(v_waiter.listener, concat_ws(':',
            'granted', v_waiter.number, v_token, v_offer, leasehold.micros(p_now)));
        END IF;
      END IF;
    END IF;
    DELETE FROM leasehold.waiters w WHERE w.name = p_name AND w.claim = v_waiter.claim;
  END LOOP;
END
$$;
