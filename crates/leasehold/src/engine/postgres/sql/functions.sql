CREATE OR REPLACE FUNCTION leasehold.stripe(p_name text) RETURNS integer
LANGUAGE sql IMMUTABLE STRICT AS $$
  SELECT (get_byte(sha256(convert_to(p_name, 'UTF8')), 0) * 4)
       + (get_byte(sha256(convert_to(p_name, 'UTF8')), 1) & 3)
$$;

CREATE OR REPLACE FUNCTION leasehold.micros(p_time timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT AS $$
  SELECT (extract(epoch FROM p_time) * 1000000)::bigint
$$;

-- Begins a call that decides about one lock. What follows must see what was decided before it, so each statement needs a view of its own.
CREATE OR REPLACE FUNCTION leasehold.take_turn(p_stripe integer, p_patience bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'leasehold needs transactions that are read committed' USING ERRCODE = 'LH001';
  END IF;
  PERFORM set_config('lock_timeout', p_patience::text, true);
  PERFORM pg_advisory_xact_lock(1818583923, p_stripe);
END
$$;

-- A grant must be on the disk before anyone hears of it.
CREATE OR REPLACE FUNCTION leasehold.durably() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
END
$$;

-- The hybrid clock: greater than all before, and not behind the wall clock.
CREATE OR REPLACE FUNCTION leasehold.next_token(p_stripe integer, p_now timestamptz) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  v_token bigint;
BEGIN
  INSERT INTO leasehold.tokens AS t (stripe, last) VALUES (p_stripe, leasehold.micros(p_now))
  ON CONFLICT (stripe) DO UPDATE SET last = greatest(t.last + 1, excluded.last)
  RETURNING last INTO v_token;
  RETURN v_token;
END
$$;

-- For how many milliseconds a lock may be handed over to a process that waits, until it has said a word; null if it is dead. One
-- that was killed is known at once where its session is its own. One that asks again and again will ask soon.
CREATE OR REPLACE FUNCTION leasehold.offer_to(p_listener text, p_now timestamptz) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
  v_listener record;
BEGIN
  SELECT in_session, alive_until <= p_now AS is_late INTO v_listener FROM leasehold.listeners WHERE id = p_listener;
  -- Its own session could take that lock once more.
  IF NOT FOUND OR (v_listener.in_session AND current_setting('leasehold_beat.listener', true) IS DISTINCT FROM p_listener
    AND pg_try_advisory_xact_lock_shared(hashtextextended(p_listener, 0)))
  THEN
    RETURN NULL;
  END IF;
  IF v_listener.is_late THEN
    -- A row that is locked is that of one who says just now that it is alive. Any other hears with its next beat, should there be
    -- one, that it was passed over.
    PERFORM FROM leasehold.listeners WHERE id = p_listener AND alive_until <= p_now FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE leasehold.listeners SET passed_over = true WHERE id = p_listener;
      RETURN NULL;
    END IF;
  END IF;
  RETURN CASE WHEN v_listener.in_session THEN 500 ELSE 250 END;
END
$$;

-- What becomes of one that was handed the lock and is not known to have heard of it: it is told to look, and has a place at the end
-- of the queue that counts once it asks again. It may have heard, and have lost the lock since.
CREATE OR REPLACE FUNCTION leasehold.put_back(p_gone leasehold.holders, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF p_gone.offered AND leasehold.offer_to(p_gone.listener, p_now) IS NOT NULL THEN
    INSERT INTO leasehold.waiters (name, claim, mode, ttl, since, listener, number, look_at, lapsed, owner, host, pid, reason)
    VALUES (p_gone.name, p_gone.claim, p_gone.mode, p_gone.ttl, p_now, p_gone.listener, p_gone.number, p_now, true,
      p_gone.owner, p_gone.host, p_gone.pid, p_gone.reason)
    ON CONFLICT DO NOTHING;
    PERFORM pg_notify(p_gone.listener, concat_ws(':', 'look', p_gone.number, 0));
  END IF;
END
$$;

-- Removes holders whose time is over.
CREATE OR REPLACE FUNCTION leasehold.expire(p_name text, p_now timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  v_gone leasehold.holders;
BEGIN
  FOR v_gone IN DELETE FROM leasehold.holders h WHERE h.name = p_name AND h.expires_at <= p_now RETURNING h.* LOOP
    PERFORM leasehold.put_back(v_gone, p_now);
  END LOOP;
END
$$;

-- Lets in whoever is next while it fits; whose process is dead is passed over. The lock is handed over for half a second,
-- until its holder renews. p_own, which asks just now, gets its whole TTL and needs no message.
-- Expired holders have been removed. Returns how many others were let in.
CREATE OR REPLACE FUNCTION leasehold.admit(
  p_name text, p_stripe integer, p_now timestamptz, p_own bytea, p_backed_until timestamptz
) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
  v_handed_over integer := 0;
  v_held integer;
  v_held_mode integer;
  v_waiter record;
  v_token bigint;
  v_offer bigint;
  v_until timestamptz;
BEGIN
  SELECT count(*), min(mode) INTO v_held, v_held_mode FROM leasehold.holders WHERE name = p_name;
  LOOP
    SELECT * INTO v_waiter FROM leasehold.waiters w WHERE w.name = p_name AND NOT w.lapsed ORDER BY w.place LIMIT 1;
    EXIT WHEN NOT FOUND;
    v_offer := CASE v_waiter.claim WHEN p_own THEN v_waiter.ttl ELSE leasehold.offer_to(v_waiter.listener, p_now) END;
    IF v_offer IS NOT NULL THEN
      EXIT WHEN NOT (v_held = 0
        OR (v_waiter.mode <> 0 AND v_held_mode = v_waiter.mode AND (v_waiter.mode = -1 OR v_held < v_waiter.mode)));
      v_token := leasehold.next_token(p_stripe, p_now);
      IF v_waiter.claim IS DISTINCT FROM p_own THEN
        v_offer := least(v_offer, v_waiter.ttl);
        v_handed_over := v_handed_over + 1;
        PERFORM pg_notify(v_waiter.listener, concat_ws(':',
          'granted', v_waiter.number, v_token, v_offer, leasehold.micros(p_now)));
      END IF;
      v_until := p_now + v_offer * interval '1 millisecond';
      INSERT INTO leasehold.holders VALUES (p_name, v_waiter.claim, v_waiter.mode, v_token, p_now, v_until,
        coalesce(p_backed_until, v_until), v_waiter.claim IS DISTINCT FROM p_own, v_waiter.ttl, v_waiter.listener, v_waiter.number,
        v_waiter.owner, v_waiter.host, v_waiter.pid, v_waiter.reason);
      v_held := v_held + 1;
      v_held_mode := v_waiter.mode;
    END IF;
    DELETE FROM leasehold.waiters WHERE name = p_name AND claim = v_waiter.claim;
  END LOOP;
  RETURN v_handed_over;
END
$$;

-- One attempt.
CREATE OR REPLACE FUNCTION leasehold.acquire(
  p_name text, p_claim bytea, p_mode integer, p_ttl bigint, p_listener text, p_number bigint,
  p_owner text, p_host text, p_pid bigint, p_reason text, p_patience bigint,
  OUT outcome text, OUT token bigint, OUT now_us bigint, OUT left_ms bigint, OUT rank bigint, OUT holders bigint
)
LANGUAGE plpgsql AS $$
DECLARE
  v_stripe integer := leasehold.stripe(p_name);
  v_now timestamptz;
  v_until timestamptz;
  v_other integer;
  v_held_mode integer;
  v_waits boolean := true;
  v_handed_over integer;
BEGIN
  PERFORM leasehold.take_turn(v_stripe, p_patience);
  PERFORM leasehold.durably();
  v_now := clock_timestamp();
  now_us := leasehold.micros(v_now);
  v_until := v_now + p_ttl * interval '1 millisecond';

  IF EXISTS (SELECT FROM leasehold.holders h WHERE h.name = p_name)
    OR EXISTS (SELECT FROM leasehold.waiters w WHERE w.name = p_name)
  THEN
    PERFORM leasehold.expire(p_name, v_now);
    -- Held already by this very claim: its reply, or the message that handed it over, was lost.
    UPDATE leasehold.holders h SET expires_at = v_until, backed_until = v_until, offered = false
    WHERE h.name = p_name AND h.claim = p_claim RETURNING h.token INTO token;
    IF FOUND THEN
      outcome := 'granted';
      RETURN;
    END IF;
    IF p_mode > 0 THEN
      SELECT there.mode INTO v_other FROM (
        SELECT h.mode FROM leasehold.holders h WHERE h.name = p_name
        UNION ALL
        SELECT w.mode FROM leasehold.waiters w JOIN leasehold.listeners l ON l.id = w.listener
        WHERE w.name = p_name AND NOT w.lapsed AND l.alive_until > v_now
      ) there WHERE there.mode > 0 AND there.mode <> p_mode LIMIT 1;
      IF FOUND THEN
        outcome := 'mismatch';
        token := v_other;
        RETURN;
      END IF;
    END IF;
    IF p_listener IS NOT NULL THEN
      INSERT INTO leasehold.waiters AS w (name, claim, mode, ttl, since, listener, number, owner, host, pid, reason)
      VALUES (p_name, p_claim, p_mode, p_ttl, v_now, p_listener, p_number, p_owner, p_host, p_pid, p_reason)
      ON CONFLICT (name, claim) DO UPDATE
      SET listener = excluded.listener, number = excluded.number, ttl = excluded.ttl, lapsed = false
      WHERE w.lapsed OR (w.listener, w.number, w.ttl) IS DISTINCT FROM (excluded.listener, excluded.number, excluded.ttl);
    END IF;
    v_handed_over := leasehold.admit(p_name, v_stripe, v_now, p_claim, NULL);
    SELECT h.token INTO token FROM leasehold.holders h WHERE h.name = p_name AND h.claim = p_claim;
    IF FOUND THEN
      outcome := 'granted';
      RETURN;
    END IF;
    SELECT count(*), min(h.mode), ceil(extract(epoch FROM min(h.expires_at) - v_now) * 1000)
    INTO holders, v_held_mode, left_ms FROM leasehold.holders h WHERE h.name = p_name;
    SELECT count(*) INTO rank FROM leasehold.waiters w WHERE w.name = p_name AND NOT w.lapsed AND (p_listener IS NULL OR w.place <
      (SELECT mine.place FROM leasehold.waiters mine WHERE mine.name = p_name AND mine.claim = p_claim));
    v_waits := p_listener IS NOT NULL OR rank > 0 OR NOT (holders = 0
      OR (p_mode <> 0 AND v_held_mode = p_mode AND (p_mode = -1 OR holders < p_mode)));
    IF v_waits THEN
      -- A place in the queue need not outlive a crash.
      IF v_handed_over = 0 THEN
        PERFORM set_config('synchronous_commit', 'off', true);
      END IF;
      outcome := 'held';
      RETURN;
    END IF;
  END IF;

  token := leasehold.next_token(v_stripe, v_now);
  INSERT INTO leasehold.holders VALUES (p_name, p_claim, p_mode, token, v_now, v_until, v_until, false, NULL, NULL, NULL,
    p_owner, p_host, p_pid, p_reason);
  outcome := 'granted';
END
$$;

-- Gives up a claim, whatever has become of it. If a crash forgets that, the lock stays taken until the TTL ends, so it need not
-- be on the disk at once. If the lock goes to another, that holds too as long as what a crash would bring back excludes
-- everybody for longer than the new holder relies on: one who held it alone, and has not expired by then.
CREATE OR REPLACE FUNCTION leasehold.release(p_name text, p_claim bytea, p_patience bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
  v_stripe integer := leasehold.stripe(p_name);
  v_now timestamptz;
  v_mode integer;
  v_backed_until timestamptz;
  v_held boolean;
BEGIN
  PERFORM leasehold.take_turn(v_stripe, p_patience);
  v_now := clock_timestamp();
  DELETE FROM leasehold.holders WHERE name = p_name AND claim = p_claim
  RETURNING mode, backed_until, expires_at > v_now INTO v_mode, v_backed_until, v_held;
  IF NOT FOUND THEN
    v_held := false;
    DELETE FROM leasehold.waiters WHERE name = p_name AND claim = p_claim;
  END IF;
  IF v_mode IS DISTINCT FROM 0 OR v_backed_until < v_now + interval '500 milliseconds' THEN
    v_backed_until := NULL;
  END IF;
  IF EXISTS (SELECT FROM leasehold.waiters WHERE name = p_name) THEN
    PERFORM leasehold.expire(p_name, v_now);
    IF leasehold.admit(p_name, v_stripe, v_now, NULL, v_backed_until) > 0 AND v_backed_until IS NULL THEN
      PERFORM leasehold.durably();
      RETURN v_held;
    END IF;
  END IF;
  PERFORM set_config('synchronous_commit', 'off', true);
  RETURN v_held;
END
$$;

-- Grants each claim its whole TTL anew, if it holds the lock.
CREATE OR REPLACE FUNCTION leasehold.renew(p_names text[], p_claims bytea[], p_ttls bigint[], p_patience bigint)
RETURNS TABLE (nth bigint, token bigint)
LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_renewed record;
  v_told text;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'leasehold needs transactions that are read committed' USING ERRCODE = 'LH001';
  END IF;
  PERFORM set_config('lock_timeout', p_patience::text, true);
  PERFORM leasehold.durably();
  FOR v_renewed IN
    WITH asked AS (
      SELECT * FROM unnest(p_names, p_claims, p_ttls) WITH ORDINALITY AS a (name, claim, ttl, nth)
    ), found AS (
      SELECT h.name, h.claim, a.ttl, a.nth, h.expires_at AS was_until
      FROM asked a JOIN leasehold.holders h ON h.name = a.name AND h.claim = a.claim
      WHERE h.expires_at > clock_timestamp()
      ORDER BY h.name, h.claim FOR NO KEY UPDATE OF h
    )
    UPDATE leasehold.holders h
    SET expires_at = v_now + f.ttl * interval '1 millisecond',
        backed_until = v_now + f.ttl * interval '1 millisecond',
        offered = false
    FROM found f WHERE h.name = f.name AND h.claim = f.claim
    RETURNING f.nth, h.token, h.name, f.ttl, f.was_until > h.expires_at AS cut_short
  LOOP
    -- Whoever is first may now have less to wait for than it thinks.
    IF v_renewed.cut_short THEN
      UPDATE leasehold.waiters w SET look_at = v_now + v_renewed.ttl * interval '1 millisecond'
      WHERE w.name = v_renewed.name
        AND w.place = (SELECT min(f.place) FROM leasehold.waiters f WHERE f.name = v_renewed.name AND NOT f.lapsed)
      RETURNING pg_notify(w.listener, concat_ws(':', 'look', w.number, v_renewed.ttl))::text INTO v_told;
    END IF;
    nth := v_renewed.nth;
    token := v_renewed.token;
    RETURN NEXT;
  END LOOP;
END
$$;

-- An operator's act: whoever holds the lock loses it.
CREATE OR REPLACE FUNCTION leasehold.break_lock(p_name text, p_patience bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
  v_stripe integer := leasehold.stripe(p_name);
  v_now timestamptz;
  v_held boolean := false;
  v_gone leasehold.holders;
BEGIN
  PERFORM leasehold.take_turn(v_stripe, p_patience);
  PERFORM leasehold.durably();
  v_now := clock_timestamp();
  FOR v_gone IN DELETE FROM leasehold.holders WHERE name = p_name RETURNING * LOOP
    v_held := v_held OR v_gone.expires_at > v_now;
    PERFORM leasehold.put_back(v_gone, v_now);
  END LOOP;
  PERFORM leasehold.admit(p_name, v_stripe, v_now, NULL, NULL);
  RETURN v_held;
END
$$;

-- A process that waits says so, again and again, and hears what has been handed over to its waiters, and which of them should
-- look (those without a token), should a message have been lost. Whoever does so passes on what was handed to the dead.
CREATE OR REPLACE FUNCTION leasehold.beat(p_listener text, p_in_session boolean, p_alive bigint, p_patience bigint)
RETURNS TABLE (was_alive boolean, now_us bigint, number bigint, token bigint, offer_ms bigint, at_us bigint)
LANGUAGE plpgsql AS $$
DECLARE
  v_now timestamptz := clock_timestamp();
  v_name text;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'leasehold needs transactions that are read committed' USING ERRCODE = 'LH001';
  END IF;
  PERFORM set_config('lock_timeout', p_patience::text, true);
  PERFORM leasehold.durably();
  PERFORM set_config('leasehold_beat.listener', p_listener, true);
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
      PERFORM leasehold.expire(v_name, v_now);
      PERFORM leasehold.admit(v_name, leasehold.stripe(v_name), v_now, NULL, NULL);
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
  v_now timestamptz := clock_timestamp();
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
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

-- Writes a guarded record unless a higher token has written before, or the record is guarded by another lock.
CREATE OR REPLACE FUNCTION leasehold.write_fenced(
  p_key text, p_value bytea, p_token bigint, p_lock text,
  OUT outcome text, OUT version bigint, OUT token bigint, OUT lock text
)
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM leasehold.durably();
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
BEGIN
  PERFORM leasehold.durably();
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

INSERT INTO leasehold.layout (version) VALUES (1)
ON CONFLICT (only_row) DO UPDATE SET version = excluded.version;
