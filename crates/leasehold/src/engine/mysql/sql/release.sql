-- Gives up a claim, whatever has become of it.
CREATE PROCEDURE leasehold_release(
  p_name VARBINARY(255), p_claim BINARY(32), p_listener CHAR(32) CHARACTER SET ascii COLLATE ascii_bin
)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_stripe INT DEFAULT CRC32(p_name) % 1024;
  DECLARE v_last, v_was, v_now BIGINT;
  DECLARE v_held BOOLEAN;
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
  DELETE FROM leasehold_holders WHERE name = p_name AND claim = p_claim AND expires_at > v_now;
  SET v_held = ROW_COUNT() = 1;
  IF NOT v_held THEN
    DELETE FROM leasehold_holders WHERE name = p_name AND claim = p_claim;
    DELETE FROM leasehold_waiters WHERE name = p_name AND claim = p_claim;
  END IF;
  IF EXISTS (SELECT 1 FROM leasehold_waiters WHERE name = p_name) THEN
    CALL leasehold_admit(p_name, v_now, NULL, p_listener, v_last, v_told, v_wake);
    IF v_last <> v_was THEN
      UPDATE leasehold_tokens SET last = v_last WHERE stripe = v_stripe;
    END IF;
  END IF;
  COMMIT;
  IF v_wake <> '' THEN
    CALL leasehold_wake(v_wake);
  END IF;
  SELECT v_held, v_now, v_told;
END
