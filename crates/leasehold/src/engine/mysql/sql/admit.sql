-- Lets in whoever is next while it fits; whose process is dead is passed over. The lock is handed over for half a second,
-- until its holder renews. p_own, which asks just now, gets its whole TTL and need not be told.
-- The stripe is locked. Who waits in the calling process is told by the answer to
-- the call; other processes are to be woken.
CREATE PROCEDURE leasehold_admit(
  p_name VARBINARY(255), p_now BIGINT, p_own BINARY(32), p_listener CHAR(32) CHARACTER SET ascii COLLATE ascii_bin,
  INOUT p_last BIGINT, INOUT p_told MEDIUMTEXT CHARACTER SET ascii, INOUT p_wake MEDIUMTEXT CHARACTER SET ascii
)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_held, v_held_mode, v_mode INT;
  DECLARE v_found, v_alive, v_is_own BOOLEAN;
  DECLARE v_claim BINARY(32);
  DECLARE v_first, v_ttl, v_offer, v_number, v_pid BIGINT;
  DECLARE v_listener CHAR(32) CHARACTER SET ascii COLLATE ascii_bin;
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
      COALESCE(l.alive_until > p_now AND (l.sure_until > p_now OR IS_USED_LOCK(CONCAT('leasehold-life:', l.id)) IS NOT NULL), FALSE)
    INTO v_claim, v_mode, v_ttl, v_listener, v_number, v_owner, v_host, v_pid, v_reason, v_alive
    FROM leasehold_waiters w LEFT JOIN leasehold_listeners l ON l.id = w.listener
    WHERE w.name = p_name ORDER BY w.place LIMIT 1;
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
          SET p_told = CONCAT(p_told, CONCAT_WS(':', 'granted', v_number, p_last, v_offer, p_now), ';');
        ELSE
          SET p_wake = CONCAT(p_wake, v_listener);
        END IF;
      END IF;
      INSERT INTO leasehold_holders (name, claim, mode, token, since, expires_at, offered_to, number, ttl,
        owner, host, pid, reason)
      VALUES (p_name, v_claim, v_mode, p_last, p_now, p_now + v_offer * 1000, IF(v_is_own, NULL, v_listener), v_number, v_ttl,
        v_owner, v_host, v_pid, v_reason);
      SET v_held = v_held + 1, v_held_mode = v_mode;
    END IF;
    DELETE FROM leasehold_waiters WHERE name = p_name AND claim = v_claim;
    -- Beside one who holds it alone nobody fits.
    IF v_held > 0 AND v_held_mode = 0 THEN
      LEAVE queue;
    END IF;
  END LOOP;
END
