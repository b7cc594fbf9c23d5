-- A lock was handed to one who did not take it up: the next one gets it. Whoever else is at it will do the same.
CREATE PROCEDURE leasehold_pass_on(p_name VARBINARY(255), p_listener CHAR(32) CHARACTER SET ascii COLLATE ascii_bin)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_stripe INT DEFAULT CRC32(p_name) % 1024;
  DECLARE v_last, v_was, v_now BIGINT;
  DECLARE v_told, v_wake MEDIUMTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION
  BEGIN
    ROLLBACK;
    RESIGNAL;
  END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  SELECT last INTO v_last FROM leasehold_tokens WHERE stripe = v_stripe FOR UPDATE SKIP LOCKED;
  IF v_last IS NOT NULL THEN
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), v_was = v_last;
    CALL leasehold_admit(p_name, v_now, NULL, p_listener, v_last, v_told, v_wake);
    IF v_last <> v_was THEN
      UPDATE leasehold_tokens SET last = v_last WHERE stripe = v_stripe;
    END IF;
  END IF;
  COMMIT;
  IF v_wake <> '' THEN
    CALL leasehold_wake(v_wake);
  END IF;
END
