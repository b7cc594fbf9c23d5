-- Writes a guarded record if it still has the version p_expected; if that is null, if there is no row. A null value means that the record is deleted, and only
-- its version and token are kept. p_lifetime is in microseconds; null means for ever, and zero that no row is left. Returns whether it was written.
CREATE PROCEDURE leasehold_write_record(
  p_id VARBINARY(288), p_value LONGBLOB, p_version BIGINT, p_token BIGINT, p_lock VARBINARY(255), p_lifetime BIGINT, p_expected BIGINT
)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT DEFAULT {now};
  DECLARE v_is_written BOOLEAN DEFAULT FALSE;
  -- A duplicate key: another call has inserted the row meanwhile.
  DECLARE CONTINUE HANDLER FOR 1062 BEGIN END;
{begin}
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  IF p_lifetime = 0 THEN
    DELETE FROM leasehold_records WHERE id = p_id AND version = p_expected;
    SET v_is_written = ROW_COUNT() = 1;
  ELSEIF p_expected IS NULL THEN
    INSERT INTO leasehold_records (id, value, version, token, guarded_by, ends_at)
    VALUES (p_id, p_value, p_version, p_token, p_lock, v_now + p_lifetime);
    SET v_is_written = ROW_COUNT() = 1;
  ELSE
    UPDATE leasehold_records SET value = p_value, version = p_version, token = p_token, guarded_by = p_lock, ends_at = v_now + p_lifetime
    WHERE id = p_id AND version = p_expected;
    SET v_is_written = ROW_COUNT() = 1;
  END IF;
  COMMIT;
  IF p_lifetime IS NOT NULL THEN
    -- Removes a few records whose lifetime is over: in a transaction of its own, so that it waits for others without a lock on the record above. If it
    -- fails, the next write tries again.
    BEGIN
      DECLARE CONTINUE HANDLER FOR SQLEXCEPTION ROLLBACK;
      SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
      START TRANSACTION;
      DELETE FROM leasehold_records WHERE ends_at <= v_now ORDER BY ends_at LIMIT 8;
      COMMIT;
    END;
  END IF;
  SELECT v_is_written;
END
