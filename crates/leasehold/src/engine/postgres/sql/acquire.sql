-- One attempt. If it is refused and p_listener is not null, the claim is in the queue afterwards; p_listener and p_number say where its notices go. If it is
-- refused and p_leaves is not null, the claim leaves the queue: an entry that it has with this listener is removed. If both are null, an entry stays.
--
-- outcome is granted, held, or mismatch if others count the permits differently or the claim holds the lock in another mode; token is the claim's, or
-- for a mismatch that other mode. For held, left_ms is the time until the first holder expires, and is_next whether nobody waits before the claim.
--
-- The most frequent cases come first: a free lock, and one that another claim holds exclusively.
CREATE OR REPLACE FUNCTION leasehold.acquire(
  p_name text, p_claim bytea, p_mode integer, p_ttl bigint, p_listener text, p_number bigint,
  p_owner text, p_host text, p_pid bigint, p_reason text, p_leaves text, p_patience bigint,
  OUT outcome text, OUT token bigint, OUT now_us bigint, OUT left_ms bigint, OUT is_next boolean
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_set text := leasehold.take_turn(p_name, p_patience);
  v_now timestamptz := clock_timestamp();
  v_until timestamptz := v_now + p_ttl * interval '1 millisecond';
  v_lock leasehold.holders;
  v_me leasehold.waiters;
  v_is_full boolean;
  v_offers integer := 0;
BEGIN
  now_us := leasehold.micros(v_now);
  <<granted>>
  BEGIN
    IF p_mode = 0 AND p_listener IS NULL THEN
      UPDATE leasehold.holders h SET claim = p_claim, mode = 0, token = leasehold.token_after(h.token, v_now), since = v_now,
        expires_at = v_until, backed_until = v_until, offered = false, ttl = NULL, listener = NULL, number = NULL,
        owner = p_owner, host = p_host, pid = p_pid, reason = p_reason
      WHERE h.name = p_name AND h.slot = '' AND h.claim IS NULL AND h.together = 0 AND NOT h.queued
      RETURNING h.token INTO token;
      EXIT granted WHEN FOUND;
    END IF;

    SELECT * INTO v_lock FROM leasehold.holders h WHERE h.name = p_name AND h.slot = '';
    IF NOT FOUND THEN
      PERFORM leasehold.forget_some(v_now);
      INSERT INTO leasehold.holders
      SELECT p_name, '', NULL, p_mode, t.forgotten, v_now, v_now, v_now, false, 0, false, NULL, NULL, NULL, '', '', 0, NULL
      FROM leasehold.tokens t WHERE t.only_row RETURNING * INTO v_lock;
    END IF;
    -- While another claim holds it exclusively, nobody can be admitted.
    v_is_full := v_lock.claim IS NOT NULL AND v_lock.expires_at > v_now AND v_lock.claim <> p_claim;

    IF NOT v_is_full AND (v_lock.claim IS NOT NULL OR v_lock.together > 0) THEN
      v_lock := leasehold.expire(p_name, p_listener, v_now, v_now);
      SELECT h.mode INTO token FROM leasehold.holders h
      WHERE h.name = p_name AND h.slot IN ('', p_claim) AND h.claim = p_claim AND h.mode <> p_mode;
      IF FOUND THEN
        outcome := 'mismatch';
        RETURN;
      END IF;
      -- This very claim holds the lock: the answer to an earlier attempt, or the notice of an offer, was lost.
      UPDATE leasehold.holders h SET expires_at = greatest(h.expires_at, v_until), backed_until = greatest(h.expires_at, v_until),
        offered = false
      WHERE h.name = p_name AND h.slot IN ('', p_claim) AND h.claim = p_claim RETURNING h.token INTO token;
      IF FOUND THEN
        -- An offer beside it that has ended was removed above: its permit goes to the next waiter.
        IF v_lock.queued THEN
          PERFORM leasehold.admit(p_name, v_now, leasehold.held(v_lock), v_lock.mode, NULL, NULL, NULL);
        END IF;
        EXIT granted;
      END IF;
    END IF;
    IF p_mode > 0 THEN
      SELECT there.mode INTO token FROM (
        SELECT h.mode FROM leasehold.holders h WHERE h.name = p_name AND h.claim IS NOT NULL
        UNION ALL
        SELECT w.mode FROM leasehold.waiters w JOIN leasehold.listeners l ON l.id = w.listener
        WHERE w.name = p_name AND NOT w.lapsed AND l.alive_until > v_now
      ) there WHERE there.mode > 0 AND there.mode <> p_mode LIMIT 1;
      IF FOUND THEN
        outcome := 'mismatch';
        -- An offer that has ended was removed above: its permit goes to the next waiter.
        IF NOT v_is_full AND v_lock.queued THEN
          PERFORM leasehold.admit(p_name, v_now, leasehold.held(v_lock), v_lock.mode, NULL, NULL, NULL);
          v_set := leasehold.durably();
        END IF;
        RETURN;
      END IF;
    END IF;

    IF NOT v_is_full THEN
      IF p_listener IS NOT NULL OR v_lock.queued THEN
        -- A waiter that asks again may do so with another mode or TTL: these count from now on.
        UPDATE leasehold.waiters w SET mode = p_mode, ttl = p_ttl, lapsed = w.lapsed AND p_listener IS NULL
        WHERE w.name = p_name AND w.claim = p_claim
          AND (w.mode <> p_mode OR w.ttl <> p_ttl OR (w.lapsed AND p_listener IS NOT NULL));
        v_lock.queued := v_lock.queued OR FOUND;
      END IF;
      IF v_lock.queued THEN
        -- The waiters come first, of whom this claim may be one.
        v_offers := (leasehold.admit(p_name, v_now, leasehold.held(v_lock), v_lock.mode, NULL, p_claim, NULL)).offers;
        SELECT h.token INTO token FROM leasehold.holders h
        WHERE h.name = p_name AND h.slot IN ('', p_claim) AND h.claim = p_claim;
        EXIT granted WHEN FOUND;
        SELECT * INTO v_lock FROM leasehold.holders h WHERE h.name = p_name AND h.slot = '';
      END IF;
      IF NOT v_lock.queued AND leasehold.fits(p_mode, leasehold.held(v_lock), v_lock.mode) THEN
        SELECT p_name, p_claim, 0, p_mode, NULL, v_now, NULL, NULL, NULL, false, p_owner, p_host, p_pid, p_reason INTO v_me;
        token := leasehold.enter(v_me, v_now, v_until, v_until, false);
        EXIT granted;
      END IF;
    END IF;

    IF p_listener IS NOT NULL THEN
      INSERT INTO leasehold.waiters AS w (name, claim, mode, ttl, since, listener, number, owner, host, pid, reason)
      VALUES (p_name, p_claim, p_mode, p_ttl, v_now, p_listener, p_number, p_owner, p_host, p_pid, p_reason)
      ON CONFLICT (name, claim) DO UPDATE
      SET listener = excluded.listener, number = excluded.number, mode = excluded.mode, ttl = excluded.ttl, lapsed = false
      RETURNING NOT EXISTS (
        SELECT FROM leasehold.waiters b WHERE b.name = p_name AND b.position < w.position AND NOT b.lapsed) INTO is_next;
      IF NOT v_lock.queued THEN
        -- A renewal, which takes no turn, may have cut the lock short and found no waiter to notify: so the time is read again.
        UPDATE leasehold.holders h SET queued = true WHERE h.name = p_name AND h.slot = ''
        RETURNING h.claim, h.expires_at INTO v_lock.claim, v_lock.expires_at;
      END IF;
    ELSIF p_leaves IS NOT NULL AND v_lock.queued THEN
      DELETE FROM leasehold.waiters w WHERE w.name = p_name AND w.claim = p_claim AND w.listener = p_leaves;
      IF FOUND AND NOT v_is_full THEN
        -- Those behind it may fit beside the holders.
        v_offers := v_offers + (leasehold.admit(p_name, v_now, leasehold.held(v_lock), v_lock.mode, NULL, NULL, NULL)).offers;
        SELECT * INTO v_lock FROM leasehold.holders h WHERE h.name = p_name AND h.slot = '';
      END IF;
    END IF;
    IF v_lock.claim IS NULL THEN
      SELECT min(h.expires_at) INTO v_lock.expires_at FROM leasehold.holders h WHERE h.name = p_name AND h.slot <> '';
    END IF;
    left_ms := ceil(extract(epoch FROM v_lock.expires_at - v_now) * 1000);
    -- A queue entry need not survive a crash.
    v_set := CASE v_offers WHEN 0 THEN leasehold.not_durably() ELSE leasehold.durably() END;
    outcome := 'held';
    RETURN;
  END granted;
  v_set := leasehold.durably();
  outcome := 'granted';
END
$$;
