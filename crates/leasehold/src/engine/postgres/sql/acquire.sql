-- One attempt. What most calls meet comes first: a lock that is free, and one that another holds alone.
CREATE OR REPLACE FUNCTION leasehold.acquire(
  p_name text, p_claim bytea, p_mode integer, p_ttl bigint, p_listener text, p_number bigint,
  p_owner text, p_host text, p_pid bigint, p_reason text, p_patience bigint,
  OUT outcome text, OUT token bigint, OUT now_us bigint, OUT left_ms bigint, OUT is_next boolean
)
LANGUAGE plpgsql AS $$
DECLARE
  v_set text := leasehold.take_turn(p_name, p_patience);
  v_now timestamptz := clock_timestamp();
  v_until timestamptz := v_now + p_ttl * interval '1 millisecond';
  v_lock leasehold.holders;
  v_me leasehold.waiters;
  v_is_full boolean;
  v_handed_over integer := 0;
BEGIN
  now_us := leasehold.micros(v_now);
  IF p_mode = 0 AND p_listener IS NULL THEN
    UPDATE leasehold.holders h SET claim = p_claim, mode = 0, token = leasehold.token_after(h.token, h.reserved, v_now), since = v_now,
      expires_at = v_until, backed_until = v_until, offered = false, ttl = NULL, listener = NULL, number = NULL,
      owner = p_owner, host = p_host, pid = p_pid, reason = p_reason
    WHERE h.name = p_name AND h.slot = '' AND h.claim IS NULL AND h.together = 0 AND NOT h.queued
    RETURNING h.token INTO token;
    IF FOUND THEN
      v_set := leasehold.durably();
      outcome := 'granted';
      RETURN;
    END IF;
  END IF;

  SELECT * INTO v_lock FROM leasehold.holders h WHERE h.name = p_name AND h.slot = '';
  IF NOT FOUND THEN
    INSERT INTO leasehold.holders
    SELECT p_name, '', NULL, p_mode, t.forgotten, v_now, v_now, v_now, false, 0, false, 0, NULL, NULL, NULL, '', '', 0, NULL
    FROM leasehold.tokens t WHERE t.only_row RETURNING * INTO v_lock;
  END IF;
  -- While one holds it alone, nobody can be let in.
  v_is_full := v_lock.claim IS NOT NULL AND v_lock.expires_at > v_now AND v_lock.claim <> p_claim;

  IF NOT v_is_full THEN
    IF v_lock.claim IS NOT NULL OR v_lock.together > 0 THEN
      v_lock := leasehold.expire(p_name, p_listener, v_now, v_now);
      -- Held already by this very claim: its reply, or the message that handed it over, was lost.
      UPDATE leasehold.holders h SET expires_at = v_until, backed_until = v_until, offered = false
      WHERE h.name = p_name AND h.slot IN ('', p_claim) AND h.claim = p_claim RETURNING h.token INTO token;
      IF FOUND THEN
        v_set := leasehold.durably();
        outcome := 'granted';
        RETURN;
      END IF;
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
      RETURN;
    END IF;
  END IF;

  IF NOT v_is_full THEN
    IF p_listener IS NOT NULL THEN
      UPDATE leasehold.waiters w SET lapsed = false WHERE w.name = p_name AND w.claim = p_claim AND w.lapsed;
      v_lock.queued := v_lock.queued OR FOUND;
    END IF;
    IF v_lock.queued THEN
      -- Those who wait come first, of whom this claim may be one.
      v_handed_over := (leasehold.admit(p_name, v_now, leasehold.held(v_lock), v_lock.mode, NULL, p_claim, NULL)).handed_over;
      SELECT h.token INTO token FROM leasehold.holders h
      WHERE h.name = p_name AND h.slot IN ('', p_claim) AND h.claim = p_claim;
      IF FOUND THEN
        v_set := leasehold.durably();
        outcome := 'granted';
        RETURN;
      END IF;
      SELECT * INTO v_lock FROM leasehold.holders h WHERE h.name = p_name AND h.slot = '';
    END IF;
    IF NOT v_lock.queued AND leasehold.fits(p_mode, leasehold.held(v_lock), v_lock.mode) THEN
      SELECT p_name, p_claim, 0, p_mode, NULL, v_now, NULL, NULL, NULL, false, p_owner, p_host, p_pid, p_reason INTO v_me;
      token := leasehold.enter(v_me, 0, v_now, v_until, v_until, false);
      v_set := leasehold.durably();
      outcome := 'granted';
      RETURN;
    END IF;
  END IF;

  IF p_listener IS NOT NULL THEN
    INSERT INTO leasehold.waiters AS w (name, claim, mode, ttl, since, listener, number, owner, host, pid, reason)
    VALUES (p_name, p_claim, p_mode, p_ttl, v_now, p_listener, p_number, p_owner, p_host, p_pid, p_reason)
    ON CONFLICT (name, claim) DO UPDATE
    SET listener = excluded.listener, number = excluded.number, ttl = excluded.ttl, lapsed = false
    RETURNING NOT EXISTS (
      SELECT FROM leasehold.waiters b WHERE b.name = p_name AND b.place < w.place AND NOT b.lapsed) INTO is_next;
    IF NOT v_lock.queued THEN
      UPDATE leasehold.holders h SET queued = true WHERE h.name = p_name AND h.slot = '';
    END IF;
  END IF;
  IF v_lock.claim IS NULL THEN
    SELECT min(h.expires_at) INTO v_lock.expires_at FROM leasehold.holders h WHERE h.name = p_name AND h.slot <> '';
  END IF;
  left_ms := ceil(extract(epoch FROM v_lock.expires_at - v_now) * 1000);
  -- A place in the queue need not outlive a crash.
  v_set := CASE v_handed_over WHEN 0 THEN leasehold.not_durably() ELSE leasehold.durably() END;
  outcome := 'held';
END
$$;
