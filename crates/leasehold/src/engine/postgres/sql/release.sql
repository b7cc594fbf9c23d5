-- A release soon after a crash. It may be a repetition, by this process or another one that has the claim id: the first try may have offered the lock to a waiter,
-- and the crash have lost that; the waiter may rely on its offer for up to 500 ms. So the claim keeps the lock until all offers from before the crash have ended,
-- and no longer. Returns whether the claim held the lock.
CREATE OR REPLACE FUNCTION leasehold.release_after_crash(p_name text, p_claim bytea, p_now timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
  v_ends timestamptz;
BEGIN
  UPDATE leasehold.holders h SET offered = false, expires_at = least(h.backed_until, p_now + interval '500 milliseconds'),
    backed_until = least(h.backed_until, p_now + interval '500 milliseconds')
  WHERE h.name = p_name AND h.slot = '' AND h.claim = p_claim RETURNING h.expires_at INTO v_ends;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM leasehold.note_crash(p_now), leasehold.notify_first(p_name, v_ends, p_now);
  RETURN v_ends > p_now;
END
$$;

-- Gives up a claim, whether it holds the lock, was offered it, waits for it or is not known, and offers the lock to the next waiters. An offer to a waiter of
-- the calling process (p_asker) is returned: its number, token and time.
--
-- The commit of a release need not wait for the disk: if a crash loses it, the lock stays taken until its TTL ends. Nor need that of an offer that ends before
-- backed_until: see leasehold.holders. If standbys are synchronous, it does wait for them: one that takes the place of this server may let others in earlier than this
-- server would after a crash.
CREATE OR REPLACE FUNCTION leasehold.release(
  p_name text, p_claim bytea, p_asker text, p_patience bigint,
  OUT was_held boolean, OUT now_us bigint, OUT number bigint, OUT token bigint, OUT offer_ms bigint
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_set text := leasehold.take_turn(p_name, p_patience);
  v_now timestamptz := clock_timestamp();
  v_lock leasehold.holders;
  v_token bigint;
  v_backed_until timestamptz;
  v_queued boolean;
  v_admitted record;
BEGIN
  now_us := leasehold.micros(v_now);
  UPDATE leasehold.holders h SET claim = NULL, offered = false WHERE h.name = p_name AND h.slot = '' AND h.claim = p_claim
    AND EXISTS (
      SELECT FROM leasehold.crashes c WHERE c.only_row AND c.noticed_at <= greatest(h.since, v_now - interval '500 milliseconds'))
  RETURNING h.expires_at > v_now, h.token, h.queued, h.backed_until INTO was_held, v_token, v_queued, v_backed_until;
  IF FOUND THEN
    v_set := leasehold.await_checks(p_name, v_token);
    IF NOT v_queued THEN
      v_set := leasehold.not_durably();
      RETURN;
    END IF;
    IF v_backed_until < v_now + interval '500 milliseconds' OR current_setting('synchronous_standby_names') <> '' THEN
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
      was_held := leasehold.release_after_crash(p_name, p_claim, v_now);
      DELETE FROM leasehold.waiters w WHERE w.name = p_name AND w.claim = p_claim;
    END IF;
    v_lock := leasehold.expire(p_name, p_asker, v_now, v_now);
    v_admitted := leasehold.admit(p_name, v_now, leasehold.held(v_lock), v_lock.mode, p_asker, NULL, NULL);
  END IF;
  number := v_admitted.number;
  token := v_admitted.token;
  offer_ms := v_admitted.offer_ms;
  -- A token that is ahead of the clock could be given again after a crash that loses the offer: then the commit waits for the disk, too.
  v_set := CASE WHEN v_admitted.offers > 0 AND (v_backed_until IS NULL OR v_admitted.latest > now_us)
    THEN leasehold.durably() ELSE leasehold.not_durably() END;
END
$$;

-- An operator's forced release: the holders lose the lock, as if they had expired, and it is offered to the next waiters. Returns whether it was held.
CREATE OR REPLACE FUNCTION leasehold.force_release(p_name text, p_patience bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_set text := leasehold.take_turn(p_name, p_patience);
  v_now timestamptz := clock_timestamp();
  v_held boolean;
BEGIN
  v_set := leasehold.durably();
  SELECT coalesce(bool_or(h.expires_at > v_now), false) INTO v_held
  FROM leasehold.holders h WHERE h.name = p_name AND h.claim IS NOT NULL;
  PERFORM leasehold.expire(p_name, NULL, v_now, 'infinity');
  PERFORM leasehold.admit(p_name, v_now, 0, 0, NULL, NULL, NULL);
  RETURN v_held;
END
$$;
