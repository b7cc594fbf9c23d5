-- Ends the sleep of these processes' listeners. Each that sleeps has a lock of the server's own, which tells its connection.
-- A wake-up that fails costs a moment only: they look by themselves now and then.
CREATE PROCEDURE leasehold_wake(p_listeners MEDIUMTEXT CHARACTER SET ascii)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_connection BIGINT;
  DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;
  WHILE p_listeners <> '' DO
    SET v_connection = IS_USED_LOCK(CONCAT('leasehold:', LEFT(p_listeners, 32)));
    IF v_connection IS NOT NULL THEN
      KILL QUERY v_connection;
    END IF;
    SET p_listeners = SUBSTRING(p_listeners, 33);
  END WHILE;
END
