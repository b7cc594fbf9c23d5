-- Grants the lock to the waiters at the head of the queue for as long as they fit, and takes them out of the queue. Waiters whose process is dead are
-- removed; the calling process is certainly alive. The caller has locked the stripe.
--
-- p_own, the claim that makes this attempt, gets its whole TTL. To every other waiter the lock is offered: it is the holder for half a second, or longer if
-- it renews in that time. A waiter of the calling process (p_listener) learns of its offer by p_notices, which the call returns; the ids of the other
-- processes' listeners, 32 letters each, are appended to p_wake.
--
-- p_expected is until when the waiters expect the lock to be held. If one is admitted whose TTL ends before that, the first of those left is told.
CREATE PROCEDURE leasehold_admit(
  p_name VARBINARY(255), p_now BIGINT, p_own BINARY(32), p_listener {listener_id}, p_expected BIGINT,
  INOUT p_last BIGINT, INOUT p_notices MEDIUMTEXT CHARACTER SET ascii, INOUT p_wake MEDIUMTEXT CHARACTER SET ascii
)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_held, v_held_mode, v_mode INT;
  DECLARE v_found, v_alive, v_is_own BOOLEAN;
  DECLARE v_claim BINARY(32);
  DECLARE v_first, v_ttl, v_offer, v_number, v_pid, v_ends BIGINT;
  DECLARE v_listener {listener_id};
  DECLARE v_owner, v_host VARBINARY(255);
  DECLARE v_reason VARBINARY(1024);
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_found = FALSE;
  SELECT COUNT(*), MIN(mode), MIN(expires_at) INTO v_held, v_held_mode, v_first FROM leasehold_holders WHERE name = p_name;
  IF v_first <= p_now THEN
    CALL leasehold_expire(p_name, p_now);
    SELECT COUNT(*), MIN(mode) INTO v_held, v_held_mode FROM leasehold_holders WHERE name = p_name;
  END IF;
  queue: LOOP
    SET v_found = TRUE;
    SELECT w.claim, w.mode, w.ttl, w.listener, w.number, w.owner, w.host, w.pid, w.reason,
      w.listener <=> p_listener OR COALESCE(l.alive_until > p_now AND (l.sure_until > p_now OR {life_of_l}), FALSE)
    INTO v_claim, v_mode, v_ttl, v_listener, v_number, v_owner, v_host, v_pid, v_reason, v_alive
    FROM leasehold_waiters w LEFT JOIN leasehold_listeners l ON l.id = w.listener
    WHERE w.name = p_name ORDER BY w.position LIMIT 1;
    IF NOT v_found THEN
      LEAVE queue;
    END IF;
    SET v_is_own = v_claim <=> p_own;
    IF v_alive OR v_is_own THEN
      IF NOT (v_held = 0 OR (v_mode <> 0 AND v_held_mode = v_mode AND (v_mode = -1 OR v_held < v_mode))) THEN
        LEAVE queue;
      END IF;
      SET p_last = GREATEST(p_last + 1, p_now);
      SET v_offer = v_ttl;
      IF NOT v_is_own THEN
        SET v_offer = LEAST(v_ttl, 500);
        IF v_listener <=> p_listener THEN
          SET p_notices = CONCAT(p_notices, CONCAT_WS(':', 'granted', v_number, p_last, v_offer, p_now), ';');
        ELSE
          SET p_wake = CONCAT(p_wake, v_listener);
        END IF;
      END IF;
      INSERT INTO leasehold_holders (name, claim, mode, token, since, expires_at, offered_to, number, ttl,
        owner, host, pid, reason)
      VALUES (p_name, v_claim, v_mode, p_last, p_now, p_now + v_offer * 1000, IF(v_is_own, NULL, v_listener), v_number, v_ttl,
        v_owner, v_host, v_pid, v_reason);
      SET v_held = v_held + 1, v_held_mode = v_mode, v_ends = LEAST(COALESCE(v_ends, p_expected), p_now + v_ttl * 1000);
    END IF;
    DELETE FROM leasehold_waiters WHERE name = p_name AND claim = v_claim;
    -- Nobody fits beside an exclusive holder.
    IF v_held > 0 AND v_held_mode = 0 THEN
      LEAVE queue;
    END IF;
  END LOOP;
  IF v_ends < p_expected THEN
    CALL leasehold_tell_first(p_name, v_ends, p_now, p_listener, p_notices, p_wake);
  END IF;
END
