-- An operator's act: whoever holds the lock loses it.
CREATE PROCEDURE leasehold_break_lock(
  p_name VARBINARY(255), p_listener CHAR(32) CHARACTER SET ascii COLLATE ascii_bin
)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_stripe INT DEFAULT CRC32(p_name) % 1024;
  DECLARE v_last, v_now BIGINT;
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
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  SET v_held = EXISTS (SELECT 1 FROM leasehold_holders WHERE name = p_name AND expires_at > v_now);
  DELETE FROM leasehold_holders WHERE name = p_name;
  CALL leasehold_admit(p_name, v_now, NULL, p_listener, v_last, v_told, v_wake);
  UPDATE leasehold_tokens SET last = v_last WHERE stripe = v_stripe;
  COMMIT;
  IF v_wake <> '' THEN
    CALL leasehold_wake(v_wake);
  END IF;
  SELECT v_held, v_now, v_told;
END
