-- Sends the first waiter a notice to look at p_at: it may expect the lock to last longer. A waiter of the calling process (p_listener) gets it by p_notices,
-- which the call returns; the id of another process's listener is appended to p_wake.
CREATE PROCEDURE leasehold_tell_first(
  p_name VARBINARY(255), p_at BIGINT, p_now BIGINT, p_listener {listener_id},
  INOUT p_notices MEDIUMTEXT CHARACTER SET ascii, INOUT p_wake MEDIUMTEXT CHARACTER SET ascii
)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_number BIGINT;
  DECLARE v_listener {listener_id};
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  SELECT listener, number INTO v_listener, v_number
  FROM leasehold_waiters WHERE name = p_name ORDER BY position LIMIT 1;
  IF v_listener = p_listener THEN
    SET p_notices = CONCAT(p_notices, CONCAT_WS(':', 'look', v_number, GREATEST(0, CEIL((p_at - p_now) / 1000))), ';');
  ELSEIF v_listener IS NOT NULL THEN
    INSERT INTO leasehold_notices (listener, number, look_at) VALUES (v_listener, v_number, p_at);
    SET p_wake = CONCAT(p_wake, v_listener);
  END IF;
END
