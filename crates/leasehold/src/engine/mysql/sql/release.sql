-- Gives up a claim, whatever has become of it.
CREATE PROCEDURE leasehold_release(
  p_name VARBINARY(255), p_claim BINARY(32), p_listener CHAR(32) CHARACTER SET ascii COLLATE ascii_bin
)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_stripe INT DEFAULT CRC32(p_name) % 1024;
  DECLARE v_last, v_was, v_now, v_expires_at BIGINT;
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
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), v_was = v_last;
  SELECT expires_at INTO v_expires_at FROM leasehold_holders WHERE name = p_name AND claim = p_claim FOR UPDATE;
  IF v_expires_at IS NULL THEN
    DELETE FROM leasehold_waiters WHERE name = p_name AND claim = p_claim;
  ELSE
    DELETE FROM leasehold_holders WHERE name = p_name AND claim = p_claim;
  END IF;
  IF EXISTS (SELECT 1 FROM leasehold_waiters WHERE name = p_name) THEN
    IF EXISTS (SELECT 1 FROM leasehold_holders WHERE name = p_name AND expires_at <= v_now) THEN
      CALL leasehold_expire(p_name, v_now);
    END IF;
    CALL leasehold_admit(p_name, v_now, NULL, p_listener, v_last, v_told, v_wake);
    IF v_last <> v_was THEN
      UPDATE leasehold_tokens SET last = v_last WHERE stripe = v_stripe;
    END IF;
  END IF;
  COMMIT;
  IF v_wake <> '' THEN
    CALL leasehold_wake(v_wake);
  END IF;
  SELECT COALESCE(v_expires_at > v_now, FALSE), v_now, v_told;
END
