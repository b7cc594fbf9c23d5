-- One attempt. It leaves the claim in the queue if p_number says what to call it.
CREATE PROCEDURE leasehold_acquire(
  p_name VARBINARY(255), p_claim BINARY(32), p_mode INT, p_ttl BIGINT,
  p_listener CHAR(32) CHARACTER SET ascii COLLATE ascii_bin, p_number BIGINT,
  p_owner VARBINARY(255), p_host VARBINARY(255), p_pid BIGINT, p_reason VARBINARY(1024)
)
SQL SECURITY INVOKER
acquire: BEGIN
  DECLARE v_stripe INT DEFAULT CRC32(p_name) % 1024;
  DECLARE v_outcome VARCHAR(8) CHARACTER SET ascii DEFAULT 'granted';
  DECLARE v_last, v_was, v_now, v_first, v_token, v_left, v_rank, v_place BIGINT;
  DECLARE v_held, v_held_mode, v_other INT;
  DECLARE v_told, v_wake MEDIUMTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK;
    RESIGNAL;
  END;
  ROLLBACK;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT last INTO v_last FROM leasehold_tokens WHERE stripe = v_stripe FOR UPDATE;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  SET v_was = v_last;

  -- Few statements: each costs as much as reading several rows.
  SELECT COUNT(*), MIN(mode), MIN(expires_at), MAX(IF(claim = p_claim, token, NULL)) INTO v_held, v_held_mode, v_first, v_token
  FROM leasehold_holders WHERE name = p_name;
  IF v_first <= v_now THEN
    CALL leasehold_expire(p_name, v_now);
    SELECT COUNT(*), MIN(mode), MIN(expires_at), MAX(IF(claim = p_claim, token, NULL)) INTO v_held, v_held_mode, v_first, v_token
    FROM leasehold_holders WHERE name = p_name;
  END IF;
  IF v_token IS NOT NULL THEN
    -- Held already by this very claim: its reply, or what told of the hand-over, was lost.
    UPDATE leasehold_holders SET expires_at = v_now + p_ttl * 1000, offered_to = NULL WHERE name = p_name AND claim = p_claim;
  ELSEIF v_held > 0 OR EXISTS (SELECT 1 FROM leasehold_waiters WHERE name = p_name) THEN
    IF p_mode > 0 THEN
      SELECT there.mode INTO v_other FROM (
        SELECT mode FROM leasehold_holders WHERE name = p_name
        UNION ALL
        SELECT w.mode FROM leasehold_waiters w JOIN leasehold_listeners l ON l.id = w.listener
        WHERE w.name = p_name AND l.alive_until > v_now
      ) there WHERE there.mode > 0 AND there.mode <> p_mode LIMIT 1;
    END IF;
    IF v_other IS NOT NULL THEN
      SET v_outcome = 'mismatch', v_token = v_other;
    ELSE
      IF p_number IS NOT NULL THEN
        SELECT place INTO v_place FROM leasehold_waiters WHERE name = p_name AND claim = p_claim;
        IF v_place IS NULL THEN
          INSERT INTO leasehold_waiters (name, claim, mode, ttl, since, listener, number, owner, host, pid, reason)
          VALUES (p_name, p_claim, p_mode, p_ttl, v_now, p_listener, p_number, p_owner, p_host, p_pid, p_reason);
          SET v_place = LAST_INSERT_ID();
        ELSE
          UPDATE leasehold_waiters SET listener = p_listener, number = p_number, ttl = p_ttl WHERE place = v_place;
        END IF;
      END IF;
      -- Beside one who holds it alone nobody fits.
      IF v_held = 0 OR v_held_mode <> 0 THEN
        CALL leasehold_admit(p_name, v_now, p_claim, p_listener, v_last, v_told, v_wake);
        SELECT COUNT(*), MIN(mode), MIN(expires_at), MAX(IF(claim = p_claim, token, NULL)) INTO v_held, v_held_mode, v_first, v_token
        FROM leasehold_holders WHERE name = p_name;
      END IF;
      IF v_token IS NULL THEN
        SELECT COUNT(*) INTO v_rank FROM leasehold_waiters WHERE name = p_name AND (v_place IS NULL OR place < v_place);
        IF v_place IS NOT NULL OR v_rank > 0 OR NOT (v_held = 0
          OR (p_mode <> 0 AND v_held_mode = p_mode AND (p_mode = -1 OR v_held < p_mode)))
        THEN
          SET v_outcome = 'held', v_left = CEIL((v_first - v_now) / 1000);
        END IF;
      END IF;
    END IF;
  END IF;

  IF v_outcome = 'granted' AND v_token IS NULL THEN
    SET v_last = GREATEST(v_last + 1, v_now), v_token = v_last;
    INSERT INTO leasehold_holders (name, claim, mode, token, since, expires_at, owner, host, pid, reason)
    VALUES (p_name, p_claim, p_mode, v_token, v_now, v_now + p_ttl * 1000, p_owner, p_host, p_pid, p_reason);
  END IF;
  IF v_last <> v_was THEN
    UPDATE leasehold_tokens SET last = v_last WHERE stripe = v_stripe;
  END IF;
  COMMIT;
  IF v_wake <> '' THEN
    CALL leasehold_wake(v_wake);
  END IF;
  SELECT v_outcome, v_token, v_now, v_left, v_rank, v_held, v_told;
END
