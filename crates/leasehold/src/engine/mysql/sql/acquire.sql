-- One attempt. If it is refused and p_number is not null, the claim is in the queue afterwards; p_listener and p_number say where its notices go. If it is
-- refused and p_leaves is true, the claim leaves the queue: an entry that it has with this listener is removed. Otherwise an entry stays.
--
-- Returns the outcome (granted, held, or mismatch if others count the permits differently or the claim holds the lock in another mode), the token (for a mismatch:
-- that other mode), the server's time, the milliseconds until the first holder expires, how many waiters are ahead, how many hold the lock, and notices to other
-- waiters of the calling process.
CREATE PROCEDURE leasehold_acquire(
  p_name VARBINARY(255), p_claim BINARY(32), p_mode INT, p_ttl BIGINT, p_listener {listener_id}, p_number BIGINT,
  p_owner VARBINARY(255), p_host VARBINARY(255), p_pid BIGINT, p_reason VARBINARY(1024), p_leaves BOOLEAN
)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_outcome VARCHAR(8) CHARACTER SET ascii DEFAULT 'granted';
  DECLARE v_first, v_token, v_left, v_rank, v_position BIGINT;
  DECLARE v_held, v_held_mode, v_other INT;
{begin_decision}

  -- Few statements: each costs as much as reading several rows.
  SELECT COUNT(*), MIN(mode), MIN(expires_at), MAX(IF(claim = p_claim, token, NULL)) INTO v_held, v_held_mode, v_first, v_token
  FROM leasehold_holders WHERE name = p_name;
  IF v_first <= v_now THEN
    CALL leasehold_expire(p_name, v_now);
    SELECT COUNT(*), MIN(mode), MIN(expires_at), MAX(IF(claim = p_claim, token, NULL)) INTO v_held, v_held_mode, v_first, v_token
    FROM leasehold_holders WHERE name = p_name;
  END IF;
  IF v_token IS NOT NULL AND v_held_mode <> p_mode THEN
    SET v_outcome = 'mismatch', v_token = v_held_mode;
  ELSEIF v_token IS NOT NULL THEN
    -- This very claim holds the lock: the answer to an earlier attempt, or the notice of an offer, was lost.
    -- The row is changed in any case, so that this commit waits until the grant, too, is on disk.
    UPDATE leasehold_holders SET expires_at = GREATEST(expires_at + 1, v_now + p_ttl * 1000), offered_to = NULL
    WHERE name = p_name AND claim = p_claim;
    IF v_held_mode <> 0 THEN
      -- An offer beside it that has ended was removed above: its permit goes to the next waiter.
      CALL leasehold_admit(p_name, v_now, NULL, p_listener, 9223372036854775807, v_last, v_notices, v_wake);
    END IF;
    IF p_number IS NULL THEN
      -- It may have been offered the lock, and keep it for less time than the waiters expect.
      CALL leasehold_tell_first(p_name, v_now + p_ttl * 1000, v_now, p_listener, v_notices, v_wake);
    END IF;
  ELSEIF v_held > 0 OR EXISTS (SELECT 1 FROM leasehold_waiters WHERE name = p_name) THEN
    IF p_mode > 0 THEN
      SELECT there.mode INTO v_other FROM (
        SELECT mode FROM leasehold_holders WHERE name = p_name
        UNION ALL
        SELECT w.mode FROM leasehold_waiters w JOIN leasehold_listeners l ON l.id = w.listener
        WHERE w.name = p_name AND l.alive_until > v_now AND (l.sure_until > v_now OR {life_of_l})
      ) there WHERE there.mode > 0 AND there.mode <> p_mode LIMIT 1;
    END IF;
    IF v_other IS NOT NULL THEN
      SET v_outcome = 'mismatch', v_token = v_other;
      IF v_held = 0 OR v_held_mode <> 0 THEN
        -- An offer that has ended was removed above: its permit goes to the next waiter.
        CALL leasehold_admit(p_name, v_now, NULL, p_listener, 9223372036854775807, v_last, v_notices, v_wake);
      END IF;
    ELSE
      IF p_number IS NOT NULL THEN
        SELECT position INTO v_position FROM leasehold_waiters WHERE name = p_name AND claim = p_claim FOR UPDATE;
        IF v_position IS NULL THEN
          INSERT INTO leasehold_waiters (name, claim, mode, ttl, since, listener, number, owner, host, pid, reason)
          VALUES (p_name, p_claim, p_mode, p_ttl, v_now, p_listener, p_number, p_owner, p_host, p_pid, p_reason);
          SET v_position = LAST_INSERT_ID();
        ELSE
          UPDATE leasehold_waiters SET listener = p_listener, number = p_number, mode = p_mode, ttl = p_ttl
          WHERE position = v_position;
        END IF;
      ELSEIF NOT p_leaves OR v_held = 0 OR v_held_mode <> 0 THEN
        -- A waiter that asks again may do so with another mode or TTL: these count from now on.
        UPDATE leasehold_waiters SET mode = p_mode, ttl = p_ttl WHERE name = p_name AND claim = p_claim;
      END IF;
      -- While the lock is held exclusively, nobody can be admitted. Otherwise the waiters come first, of whom this claim may be one.
      IF v_held = 0 OR v_held_mode <> 0 THEN
        CALL leasehold_admit(p_name, v_now, p_claim, p_listener, v_first, v_last, v_notices, v_wake);
        SELECT COUNT(*), MIN(mode), MIN(expires_at), MAX(IF(claim = p_claim, token, NULL)) INTO v_held, v_held_mode, v_first, v_token
        FROM leasehold_holders WHERE name = p_name;
      END IF;
      IF v_token IS NULL THEN
        SELECT COUNT(*) INTO v_rank FROM leasehold_waiters WHERE name = p_name AND (v_position IS NULL OR position < v_position);
        -- A claim in the queue was not admitted just now. One that does not queue gets the lock only if nobody waits and it fits.
        IF v_position IS NOT NULL OR v_rank > 0 OR NOT (v_held = 0
          OR (p_mode <> 0 AND v_held_mode = p_mode AND (p_mode = -1 OR v_held < p_mode)))
        THEN
          SET v_outcome = 'held';
          IF p_leaves AND v_rank > 0 THEN
            DELETE FROM leasehold_waiters WHERE name = p_name AND claim = p_claim AND listener = p_listener;
            IF ROW_COUNT() = 1 THEN
              SET v_rank = v_rank - 1;
              IF v_held_mode <> 0 THEN
                -- Those behind it may fit beside the holders.
                CALL leasehold_admit(p_name, v_now, NULL, p_listener, v_first, v_last, v_notices, v_wake);
                SELECT MIN(expires_at) INTO v_first FROM leasehold_holders WHERE name = p_name;
              END IF;
              -- It may have been the only one that knew when the lock ends.
              CALL leasehold_tell_first(p_name, v_first, v_now, p_listener, v_notices, v_wake);
            END IF;
          END IF;
          SET v_left = CEIL((v_first - v_now) / 1000);
        END IF;
      END IF;
    END IF;
  END IF;

  IF v_outcome = 'granted' AND v_token IS NULL THEN
    SET v_last = GREATEST(v_last + 1, v_now), v_token = v_last;
    INSERT INTO leasehold_holders (name, claim, mode, token, since, expires_at, owner, host, pid, reason)
    VALUES (p_name, p_claim, p_mode, v_token, v_now, v_now + p_ttl * 1000, p_owner, p_host, p_pid, p_reason);
  END IF;
{end_decision}
  SELECT v_outcome, v_token, v_now, v_left, v_rank, v_held, v_notices;
END
