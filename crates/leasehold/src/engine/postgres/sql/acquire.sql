-- One attempt. What most calls meet comes first: a lock that is free, and one that another holds alone.
CREATE OR REPLACE FUNCTION leasehold.acquire(
  p_name text, p_claim bytea, p_mode integer, p_ttl bigint, p_listener text, p_number bigint,
  p_owner text, p_host text, p_pid bigint, p_reason text, p_patience bigint,
  OUT outcome text, OUT token bigint, OUT now_us bigint, OUT left_ms bigint, OUT rank bigint, OUT holders bigint
)
LANGUAGE plpgsql AS $$
DECLARE
  v_stripe integer := leasehold.stripe(p_name);
  v_set text := leasehold.take_turn(v_stripe, p_patience);
  v_now timestamptz := clock_timestamp();
  v_until timestamptz := v_now + p_ttl * interval '1 millisecond';
  v_held_mode integer;
  v_ends timestamptz;
  v_is_mine boolean;
  v_someone_waits boolean;
  v_is_full boolean;
  v_place bigint;
  v_handed_over integer := 0;
BEGIN
  now_us := leasehold.micros(v_now);
  SELECT count(*), min(h.mode), min(h.expires_at), bool_or(h.claim = p_claim),
    EXISTS (SELECT FROM leasehold.waiters w WHERE w.name = p_name)
  INTO holders, v_held_mode, v_ends, v_is_mine, v_someone_waits
  FROM leasehold.holders h WHERE h.name = p_name;

  IF holders > 0 OR v_someone_waits THEN
    -- While one holds it alone, nobody can be let in.
    v_is_full := v_held_mode = 0 AND v_ends > v_now AND NOT v_is_mine;
    IF v_is_full IS NOT TRUE THEN
      PERFORM leasehold.expire(p_name, p_listener, v_now);
      -- Held already by this very claim: its reply, or the message that handed it over, was lost.
      UPDATE leasehold.holders h SET expires_at = v_until, backed_until = v_until, offered = false
      WHERE h.name = p_name AND h.claim = p_claim RETURNING h.token INTO token;
      IF FOUND THEN
        v_set := leasehold.durably();
        outcome := 'granted';
        RETURN;
      END IF;
    END IF;
    IF p_mode > 0 THEN
      SELECT there.mode INTO token FROM (
        SELECT h.mode FROM leasehold.holders h WHERE h.name = p_name
        UNION ALL
        SELECT w.mode FROM leasehold.waiters w JOIN leasehold.listeners l ON l.id = w.listener
        WHERE w.name = p_name AND NOT w.lapsed AND l.alive_until > v_now
      ) there WHERE there.mode > 0 AND there.mode <> p_mode LIMIT 1;
      IF FOUND THEN
        outcome := 'mismatch';
        RETURN;
      END IF;
    END IF;
    IF p_listener IS NOT NULL THEN
      INSERT INTO leasehold.waiters AS w (name, claim, mode, ttl, since, listener, number, owner, host, pid, reason)
      VALUES (p_name, p_claim, p_mode, p_ttl, v_now, p_listener, p_number, p_owner, p_host, p_pid, p_reason)
      ON CONFLICT (name, claim) DO UPDATE
      SET listener = excluded.listener, number = excluded.number, ttl = excluded.ttl, lapsed = false
      RETURNING place INTO v_place;
    END IF;
    IF v_is_full IS NOT TRUE THEN
      SELECT count(*), min(h.mode) INTO holders, v_held_mode FROM leasehold.holders h WHERE h.name = p_name;
      v_handed_over := (leasehold.admit(p_name, v_stripe, v_now, holders, v_held_mode, NULL, p_claim, NULL)).handed_over;
      SELECT h.token INTO token FROM leasehold.holders h WHERE h.name = p_name AND h.claim = p_claim;
      IF FOUND THEN
        v_set := leasehold.durably();
        outcome := 'granted';
        RETURN;
      END IF;
      SELECT count(*), min(h.mode), min(h.expires_at) INTO holders, v_held_mode, v_ends
      FROM leasehold.holders h WHERE h.name = p_name;
    END IF;
    SELECT count(*) INTO rank FROM leasehold.waiters w
    WHERE w.name = p_name AND NOT w.lapsed AND (v_place IS NULL OR w.place < v_place);
    IF v_place IS NOT NULL OR rank > 0 OR NOT leasehold.fits(p_mode, holders, v_held_mode) THEN
      -- A place in the queue need not outlive a crash.
      v_set := CASE v_handed_over WHEN 0 THEN leasehold.not_durably() ELSE leasehold.durably() END;
      left_ms := ceil(extract(epoch FROM v_ends - v_now) * 1000);
      outcome := 'held';
      RETURN;
    END IF;
  END IF;

  v_set := leasehold.durably();
  token := leasehold.next_token(v_stripe, v_now);
  INSERT INTO leasehold.holders VALUES (p_name, p_claim, p_mode, token, v_now, v_until, v_until, false, NULL, NULL, NULL,
    p_owner, p_host, p_pid, p_reason);
  outcome := 'granted';
END
$$;
