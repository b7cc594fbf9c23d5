-- Removes the holders that expire by p_until. If one of them was offered the lock and has not renewed, its waiter may not have learned of the offer, so
-- it is sent a notice to look. It does not get its position in the queue back: if it did learn of the offer and has lost the lock since, it waits no
-- longer. If it does wait, its next attempt queues it again.
CREATE PROCEDURE leasehold_expire(p_name VARBINARY(255), p_until BIGINT)
SQL SECURITY INVOKER
BEGIN
  INSERT INTO leasehold_notices (listener, number, look_at)
  SELECT h.offered_to, h.number, 0 FROM leasehold_holders h
  WHERE h.name = p_name AND h.expires_at <= p_until AND h.offered_to IS NOT NULL
  FOR UPDATE;
  DELETE FROM leasehold_holders WHERE name = p_name AND expires_at <= p_until;
END
