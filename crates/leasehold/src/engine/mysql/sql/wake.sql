-- Wakes listeners that sleep in leasehold_listen, so that they look for offers and notices. p_listeners is their ids, 32 letters each, one after the other. A
-- listener that sleeps has a user-level lock (GET_LOCK), which shows its connection. If a wake-up fails, the listener looks when its sleep is over.
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
