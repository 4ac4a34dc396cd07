-- Raise a writer's epoch: from here on its older incarnations are refused.
-- KEYS: state
-- ARGV: writer, epoch
local newest = tonumber(redis.call('HGET', KEYS[1], 'epoch:' .. ARGV[1]) or ARGV[2])
if tonumber(ARGV[2]) < newest then return redis.error_reply('FENCED ' .. newest) end
redis.call('HSET', KEYS[1], 'epoch:' .. ARGV[1], ARGV[2])
return 1
