-- The holder's time was cut short: whoever is first has less to wait for than it thinks.
CREATE PROCEDURE leasehold_look(
  p_name VARBINARY(255), p_after BIGINT, p_listener CHAR(32) CHARACTER SET ascii COLLATE ascii_bin
)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now, v_number BIGINT;
  DECLARE v_claim BINARY(32);
  DECLARE v_listener CHAR(32) CHARACTER SET ascii COLLATE ascii_bin;
  DECLARE v_told MEDIUMTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  SELECT claim, listener, number INTO v_claim, v_listener, v_number
  FROM leasehold_waiters WHERE name = p_name ORDER BY place LIMIT 1;
  IF v_listener = p_listener THEN
    SET v_told = CONCAT_WS(':', 'look', v_number, p_after);
  ELSEIF v_listener IS NOT NULL THEN
    UPDATE leasehold_waiters SET look_at = v_now + p_after * 1000 WHERE name = p_name AND claim = v_claim;
    CALL leasehold_wake(v_listener);
  END IF;
  SELECT TRUE, v_now, v_told;
END
