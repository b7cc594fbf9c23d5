-- Gives up a claim, whatever has become of it. If a crash forgets that, the lock stays taken until the TTL ends, so it need not
-- be on the disk at once. If the lock goes to another, that holds too as long as what a crash would bring back excludes
-- everybody for longer than the new holder relies on: one who held it alone, and has not expired by then.
-- If it goes to a waiter of the very process that asks, the answer tells of it.
CREATE OR REPLACE FUNCTION leasehold.release(
  p_name text, p_claim bytea, p_asker text, p_patience bigint,
  OUT was_held boolean, OUT now_us bigint, OUT number bigint, OUT token bigint, OUT offer_ms bigint
)
LANGUAGE plpgsql AS $$
DECLARE
  v_stripe integer := leasehold.stripe(p_name);
  v_set text := leasehold.take_turn(v_stripe, p_patience);
  v_now timestamptz := clock_timestamp();
  v_mode integer;
  v_held bigint := 0;
  v_held_mode integer;
  v_backed_until timestamptz;
  v_admitted record;
BEGIN
  now_us := leasehold.micros(v_now);
  DELETE FROM leasehold.holders h WHERE h.name = p_name AND h.claim = p_claim
  RETURNING h.mode, h.backed_until, h.expires_at > v_now INTO v_mode, v_backed_until, was_held;
  IF NOT FOUND THEN
    was_held := false;
    DELETE FROM leasehold.waiters w WHERE w.name = p_name AND w.claim = p_claim;
  END IF;
  -- Who held it alone leaves nobody behind.
  IF v_mode IS DISTINCT FROM 0 THEN
    PERFORM leasehold.expire(p_name, p_asker, v_now);
    SELECT count(*), min(h.mode) INTO v_held, v_held_mode FROM leasehold.holders h WHERE h.name = p_name;
    v_backed_until := NULL;
  ELSIF v_backed_until < v_now + interval '500 milliseconds' THEN
    v_backed_until := NULL;
  END IF;
  v_admitted := leasehold.admit(p_name, v_stripe, v_now, v_held, v_held_mode, p_asker, NULL, v_backed_until);
  v_set := CASE WHEN v_admitted.handed_over > 0 AND v_backed_until IS NULL THEN leasehold.durably() ELSE leasehold.not_durably() END;
  number := v_admitted.number;
  token := v_admitted.token;
  offer_ms := v_admitted.offer_ms;
END
$$;

-- An operator's act: whoever holds the lock loses it.
CREATE OR REPLACE FUNCTION leasehold.break_lock(p_name text, p_patience bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
  v_stripe integer := leasehold.stripe(p_name);
  v_set text := leasehold.take_turn(v_stripe, p_patience);
  v_now timestamptz := clock_timestamp();
  v_held boolean := false;
  v_gone leasehold.holders;
BEGIN
  v_set := leasehold.durably();
  FOR v_gone IN DELETE FROM leasehold.holders WHERE name = p_name RETURNING * LOOP
    v_held := v_held OR v_gone.expires_at > v_now;
    PERFORM leasehold.put_back(v_gone, NULL, v_now);
  END LOOP;
  PERFORM leasehold.admit(p_name, v_stripe, v_now, 0, NULL, NULL, NULL, NULL);
  RETURN v_held;
END
$$;
