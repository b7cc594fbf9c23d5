-- A renewal has cut the lock short: the first waiter is sent a notice to look when the lock ends, which is in p_after milliseconds. If the waiter is one of
-- the calling process (p_listener), the answer has the notice.
CREATE PROCEDURE leasehold_look(p_name VARBINARY(255), p_after BIGINT, p_listener {listener_id})
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT DEFAULT {now};
  DECLARE v_notices, v_wake MEDIUMTEXT CHARACTER SET ascii DEFAULT '';
  CALL leasehold_tell_first(p_name, v_now + p_after * 1000, v_now, p_listener, v_notices, v_wake);
  IF v_wake <> '' THEN
    CALL leasehold_wake(v_wake);
  END IF;
  SELECT TRUE, v_now, v_notices;
END
