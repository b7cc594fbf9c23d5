-- Gives up a claim, whatever has become of it. If a crash forgets that, the lock stays taken until the TTL ends, so it need not
-- be on the disk at once. If the lock goes to another, that holds too as long as what a crash would bring back excludes
-- everybody for longer than the new holder relies on: one who held it alone, and has not expired by then.
-- If it goes to a waiter of the very process that asks, the answer tells of it.
--
-- That process may have passed the lock on already, from one claim to the next: the last of p_passed holds it now. Each has a token, the
-- first of p_tokens being that of p_claim. If p_claim holds the lock here, that is agreed to, whatever else is known of them.
CREATE OR REPLACE FUNCTION leasehold.release(
  p_name text, p_claim bytea, p_asker text, p_passed bytea[], p_tokens bigint[], p_patience bigint,
  OUT was_held boolean, OUT now_us bigint, OUT number bigint, OUT token bigint, OUT offer_ms bigint,
  OUT heirs bigint[], OUT heir_token bigint, OUT heir_offer_ms bigint
)
LANGUAGE plpgsql AS $$
DECLARE
  v_set text := leasehold.take_turn(p_name, p_patience);
  v_now timestamptz := clock_timestamp();
  v_until timestamptz;
  v_lock leasehold.holders;
  v_waiter leasehold.waiters;
  v_heirs record;
  v_token bigint;
  v_backed_until timestamptz;
  v_queued boolean;
  v_admitted record;
BEGIN
  now_us := leasehold.micros(v_now);
  IF p_passed IS NOT NULL THEN
    FOR nth IN 1..cardinality(p_passed) LOOP
      v_set := leasehold.await_checks(p_name, p_tokens[nth]);
    END LOOP;
    token := p_tokens[cardinality(p_tokens)];
    WITH gone AS (
      DELETE FROM leasehold.waiters w WHERE w.name = p_name AND w.claim = ANY (p_passed) RETURNING *
    )
    SELECT * INTO v_waiter FROM gone WHERE claim = p_passed[cardinality(p_passed)];
    offer_ms := least(500, v_waiter.ttl);
    v_until := v_now + offer_ms * interval '1 millisecond';
    v_heirs := leasehold.heirs(p_name, p_asker);
    UPDATE leasehold.holders h SET claim = p_passed[cardinality(p_passed)], token = release.token, since = v_now,
      reserved = greatest(release.token, h.reserved) + cardinality(v_heirs.numbers),
      expires_at = v_until, offered = true,
      backed_until = CASE WHEN h.backed_until < v_until THEN v_until ELSE h.backed_until END,
      ttl = v_waiter.ttl, listener = p_asker, number = v_waiter.number, owner = coalesce(v_waiter.owner, h.owner),
      host = coalesce(v_waiter.host, h.host), pid = coalesce(v_waiter.pid, h.pid), reason = v_waiter.reason
    WHERE h.name = p_name AND h.slot = '' AND h.claim = p_claim
    RETURNING h.reserved - cardinality(v_heirs.numbers) + 1, h.backed_until INTO heir_token, v_backed_until;
    IF FOUND THEN
      was_held := true;
      number := coalesce(v_waiter.number, 0);
      heirs := v_heirs.numbers;
      heir_offer_ms := v_heirs.offer_ms;
      v_set := CASE WHEN v_backed_until = v_until OR token > now_us THEN leasehold.durably() ELSE leasehold.not_durably() END;
      RETURN;
    END IF;
  END IF;

  UPDATE leasehold.holders h SET claim = NULL, offered = false WHERE h.name = p_name AND h.slot = '' AND h.claim = p_claim
  RETURNING h.expires_at > v_now, h.token, h.queued, h.backed_until INTO was_held, v_token, v_queued, v_backed_until;
  IF FOUND THEN
    v_set := leasehold.await_checks(p_name, v_token);
    IF NOT v_queued THEN
      v_set := leasehold.not_durably();
      RETURN;
    END IF;
    IF v_backed_until < v_now + interval '500 milliseconds' THEN
      v_backed_until := NULL;
    END IF;
    v_admitted := leasehold.admit(p_name, v_now, 0, 0, p_asker, NULL, v_backed_until);
  ELSE
    DELETE FROM leasehold.holders h WHERE h.name = p_name AND h.slot = p_claim
    RETURNING h.expires_at > v_now, h.token INTO was_held, v_token;
    IF FOUND THEN
      v_set := leasehold.await_checks(p_name, v_token);
      UPDATE leasehold.holders h SET together = h.together - 1 WHERE h.name = p_name AND h.slot = '';
    ELSE
      was_held := false;
      DELETE FROM leasehold.waiters w WHERE w.name = p_name AND w.claim = p_claim;
    END IF;
    v_lock := leasehold.expire(p_name, p_asker, v_now, v_now);
    v_admitted := leasehold.admit(p_name, v_now, leasehold.held(v_lock), v_lock.mode, p_asker, NULL, NULL);
  END IF;
  number := v_admitted.number;
  token := v_admitted.token;
  offer_ms := v_admitted.offer_ms;
  heirs := v_admitted.heirs;
  heir_token := v_admitted.heir_token;
  heir_offer_ms := v_admitted.heir_offer_ms;
  -- A token that runs ahead of the clock could be given again after a crash.
  v_set := CASE WHEN v_admitted.handed_over > 0 AND (v_backed_until IS NULL OR v_admitted.latest > now_us)
    THEN leasehold.durably() ELSE leasehold.not_durably() END;
END
$$;

-- An operator's act: whoever holds the lock loses it.
CREATE OR REPLACE FUNCTION leasehold.break_lock(p_name text, p_patience bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
  v_set text := leasehold.take_turn(p_name, p_patience);
  v_now timestamptz := clock_timestamp();
  v_held boolean;
BEGIN
  v_set := leasehold.durably();
  SELECT coalesce(bool_or(h.expires_at > v_now), false) INTO v_held
  FROM leasehold.holders h WHERE h.name = p_name AND h.claim IS NOT NULL;
  -- As if its time were over.
  PERFORM leasehold.expire(p_name, NULL, v_now, 'infinity');
  PERFORM leasehold.admit(p_name, v_now, 0, 0, NULL, NULL, NULL);
  RETURN v_held;
END
$$;
